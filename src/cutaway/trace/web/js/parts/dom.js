/**
 * Creates and updates elements. A string becomes text, never markup, here and everywhere in the page.
 */

import { heat } from "../figures/catalogue.js";
import { visible } from "../figures/numbers.js";

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Attributes "on…" are listeners, "style" is an object, all others are attributes */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {Attributes} [attributes] @param {Child[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  dress(element, attributes);
  fill(element, children);
  return element;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} name @param {Attributes} [attributes] @param {Child[]} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  dress(element, attributes);
  fill(element, children);
  return element;
}

/** @param {import("../drawings/marks.js").Mark} mark @returns {SVGElement} a drawing, or a piece of one, as elements */
export const renderMark = ({ name, attributes, children }) => svg(/** @type {"g"} */ (name), attributes,
  ...children.map((child) => (typeof child === "string" ? child : renderMark(child))));

/** What `redraw` made of each element. @type {WeakMap<Element, import("../drawings/marks.js").Mark>} */
const marksOf = new WeakMap();

/**
 * Makes an element equal to a mark of the same name, and changes only what differs from the last time, so that a drawing
 * can follow a hand in every frame.
 * @param {SVGElement} element @param {import("../drawings/marks.js").Mark} mark
 */
export function redraw(element, mark) {
  const old = marksOf.get(element);
  marksOf.set(element, mark);
  const fits = old?.children.length === mark.children.length && old.children.every((child, i) => nameOf(child) === nameOf(mark.children[i]));
  if (!old || !fits) {
    for (const name of Object.keys(old?.attributes ?? {})) element.removeAttribute(name);
    dress(element, mark.attributes);
    replace(element, ...mark.children.map((child) => (typeof child === "string" ? child : createRedrawable(child))));
    return;
  }
  for (const name of Object.keys(old.attributes)) if (!mark.attributes[name]) element.removeAttribute(name);
  const changed = Object.entries(mark.attributes).filter(([name, value]) => value !== old.attributes[name]);
  if (changed.length) dress(element, Object.fromEntries(changed));
  mark.children.forEach((child, i) => {
    const node = element.childNodes[i];
    if (typeof child !== "string") redraw(/** @type {SVGElement} */ (node), child);
    else if (child !== old.children[i]) /** @type {Text} */ (node).data = child;
  });
}

/** @param {import("../drawings/marks.js").Mark} mark @returns {SVGElement} a new element, which `redraw` will change */
function createRedrawable(mark) {
  const element = svg(/** @type {"g"} */ (mark.name));
  redraw(element, mark);
  return element;
}

/** @param {import("../drawings/marks.js").Mark | string | undefined} child @returns {string} */
const nameOf = (child) => (typeof child === "object" ? child.name : "");

/** @param {Element} element @param {Child[]} children instead of those that it has */
export function replace(element, ...children) {
  element.replaceChildren();
  fill(element, children);
}

/**
 * Makes an element equal to another one and keeps every node that is equal already, so that the focus stays
 * where it is. Listeners of the new elements are not taken over.
 * @param {Element} old @param {Element} fresh
 */
export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  for (let i = old.attributes.length - 1; i >= 0; i--) {
    const { name } = /** @type {Attr} */ (old.attributes[i]);
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (let i = 0; i < fresh.attributes.length; i++) {
    const { name, value } = /** @type {Attr} */ (fresh.attributes[i]);
    if (old.getAttribute(name) === value) continue;
    if (name !== "style") old.setAttribute(name, value);
    else /** @type {HTMLElement} */ (old).style.cssText = value; // the content security policy forbids the attribute
  }
  if (old.childNodes.length !== fresh.childNodes.length) return old.replaceChildren(...fresh.childNodes);
  let [there, node] = [old.firstChild, fresh.firstChild];
  while (there && node) {
    const [nextThere, nextNode] = [there.nextSibling, node.nextSibling];
    if (there instanceof Text && node instanceof Text) there.data = node.data;
    else if (there instanceof Element && node instanceof Element && there.nodeName === node.nodeName) morph(there, node);
    else there.replaceWith(node);
    [there, node] = [nextThere, nextNode];
  }
}

/** @param {HTMLElement} element @param {(Node | string)[]} children its new content; equal nodes stay */
export function update(element, ...children) {
  const fresh = /** @type {HTMLElement} */ (element.cloneNode(false));
  fresh.append(...children);
  morph(element, fresh);
}

/** @returns {number} how much larger the type is than 16 pixels: the factor for what a drawing leaves to its labels */
export const typeScale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

/** @param {Element} element @param {string} text set only where it differs */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {Element} element @param {Record<string, any>} attributes set only where they differ */
export function setAttributes(element, attributes) {
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
 * Scrolls a box until an element in it is visible; the page itself does not scroll.
 * @param {HTMLElement} box @param {HTMLElement} inside
 * @param {{head?: number, foot?: number, air?: number}} [room] in pixels: the heights of a sticky header and of what
 *   is stuck at the bottom, and the distance to keep from the edge
 */
export function keepInSight(box, inside, { head = 0, foot = 0, air = 0 } = {}) {
  const [frame, target] = [box.getBoundingClientRect(), inside.getBoundingClientRect()];
  const [top, bottom] = [frame.top + head, frame.bottom - foot];
  if (target.top < top) box.scrollTop += target.top - top - air;
  else if (target.bottom > bottom) box.scrollTop += target.bottom - bottom + air;
}

/** On a phone, where the panels are below all else, bring them into sight, once the store's changes are drawn. */
export function scrollToPanels() {
  const narrow = "(max-width: 56rem)"; // as in the sheets
  if (matchMedia(narrow).matches) requestAnimationFrame(() => document.querySelector("panel-tabs")?.scrollIntoView());
}

/** @returns {boolean} whether the window is a phone's, as in css/phone.css */
export const isPhone = () => matchMedia("(max-width: 40rem)").matches;

/** Bring the text into sight, above what covers the lower half. */
export const scrollToText = () => document.querySelector("token-strip")?.scrollIntoView();

// -- elements that several parts use --------------------------------------------------------------

/** @param {Child} label @param {() => void} onclick @param {Attributes} [attributes] @returns {HTMLButtonElement} */
export const button = (label, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, label);

/** @param {string} text @returns {HTMLElement} a token, with its invisible characters made visible */
export const token = (text) => el("span", { class: "token" }, visible(text));

/** @param {string | number} text @param {string} [more] classes @returns {HTMLElement} a cell of figures */
export const figure = (text, more = "") => el("td", { class: `mono figure ${more}` }, text);

/** @param {string} name @param {string} value @param {string} title @returns {HTMLElement} an entry of a dl */
export const fact = (name, value, title) =>
  el("div", { title }, el("dt", {}, name), el("dd", { class: "mono" }, value));

/** @returns {HTMLElement} the colours of all measures, from none to most, for a legend */
export const scale = () => el("span", { class: "scale", "aria-hidden": "true",
  style: { background: `linear-gradient(to right, ${heat(0)}, ${heat(1)})` } });

/** @param {string} label @param {Child[]} children @returns {HTMLElement} a box that scrolls sideways */
export const scrolling = (label, ...children) =>
  el("div", { class: "scrolling", tabindex: 0, role: "region", "aria-label": label }, ...children);

/** @param {string[]} names of columns, "" for none @returns {HTMLElement} the head of a table */
export const headRow = (...names) => el("thead", {}, el("tr", {}, ...names.map((name) =>
  (name === "" ? el("td") : el("th", { scope: "col" }, name)))));

/** @param {string} text @returns {Promise<boolean>} whether it was copied */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyAsSelection(text); // browsers have a clipboard on localhost and over https only
  }
}

/** @param {string} text @returns {boolean} whether it was copied */
function copyAsSelection(text) {
  const focused = document.activeElement;
  const field = el("textarea", { class: "visually-hidden", readonly: true, "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  return copied;
}

/**
 * A button that copies, and says so until what it would copy is another text.
 * @param {string} label @param {() => string} text @param {Attributes} [attributes]
 * @returns {{element: HTMLButtonElement, forget: () => void}} forget: show the label again
 */
export function copyButton(label, text, attributes = {}) {
  const element = button(label, async () => setText(element, (await copyText(text())) ? "Copied" : "Not copied"), attributes);
  return { element, forget: () => setText(element, label) };
}
