/**
 * Elements, made so that text is only ever text.
 *
 * Nothing here, or anywhere in the page, turns a string into markup.
 */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Attributes on… are listeners, style an object, others attributes */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {Attributes} [attributes] @param {Child[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  dress(made, attributes);
  fill(made, children);
  return made;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} name @param {Attributes} [attributes] @param {Child[]} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  dress(made, attributes);
  fill(made, children);
  return made;
}

/** @param {Element} element @param {Child[]} children what it holds from now on */
export function replace(element, ...children) {
  element.replaceChildren();
  fill(element, children);
}

/**
 * Makes an element what another is, and leaves what is the same: a figure that changes is one text, and
 * who is focused stays so. Of elements without listeners.
 * @param {Element} old @param {Element} fresh
 */
export function renew(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  for (let i = old.attributes.length - 1; i >= 0; i--) {
    const { name } = /** @type {Attr} */ (old.attributes[i]);
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (let i = 0; i < fresh.attributes.length; i++) {
    const { name, value } = /** @type {Attr} */ (fresh.attributes[i]);
    if (old.getAttribute(name) === value) continue;
    if (name !== "style") old.setAttribute(name, value);
    else /** @type {HTMLElement} */ (old).style.cssText = value; // which the page's policy lets scripts do
  }
  if (old.childNodes.length !== fresh.childNodes.length) return old.replaceChildren(...fresh.childNodes);
  let [there, node] = [old.firstChild, fresh.firstChild];
  while (there && node) {
    const [nextThere, nextNode] = [there.nextSibling, node.nextSibling];
    if (there instanceof Text && node instanceof Text) there.data = node.data;
    else if (there instanceof Element && node instanceof Element && there.nodeName === node.nodeName) renew(there, node);
    else there.replaceWith(node);
    [there, node] = [nextThere, nextNode];
  }
}

/** @param {Element} element @param {string} text what it says; nothing is touched where it does */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {Element} element @param {Record<string, any>} attributes of which those that changed are set */
export function put(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
  }
}

/** @param {Element} element @param {Child[]} children */
function fill(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** @param {HTMLElement | SVGElement} element @param {Attributes} attributes */
function dress(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, String(v));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * Scrolls a box so that something in it can be seen; the page itself stays where it is.
 * @param {HTMLElement} box @param {HTMLElement} inside
 * @param {{head?: number, air?: number}} [room] pixels: at the top under what stays there; and left
 *   free to the edge
 */
export function keepInSight(box, inside, { head = 0, air = 0 } = {}) {
  const [frame, own] = [box.getBoundingClientRect(), inside.getBoundingClientRect()];
  const top = frame.top + head;
  if (own.top < top) box.scrollTop += own.top - top - air;
  else if (own.bottom > frame.bottom) box.scrollTop += own.bottom - frame.bottom + air;
}
