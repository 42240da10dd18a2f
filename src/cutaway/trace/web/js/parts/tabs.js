/**
 * Tabs: several parts in one place, of which one is open at a time. They may be in groups with a name each.
 */

import { el, replace } from "./dom.js";
import { View } from "./view.js";

/** @typedef {[name: string, label: string, element: string]} TabSpec */

export class Tabs extends View {
  /** @type {Record<string, TabSpec[]>} in order, by group; those whose element is not defined are left out, since an exported file has fewer */
  groups = {};
  /** @type {"panel" | "kind" | "lesson"} the field of the store that names the open tab */
  key = "panel";
  label = "";
  /** @type {Map<string, {tab: HTMLElement, panel: View}>} */
  parts = new Map();

  build() {
    const groups = Object.entries(this.groups).map(([title, specs]) => this.createGroup(title, specs));
    const parts = [...this.parts.values()];
    const list = el("div", { class: "tabs", role: "tablist", "aria-label": this.label }, ...groups);
    list.addEventListener("keydown", (event) => this.handleKey(event, parts.map(({ tab }) => tab)));
    replace(this, list, ...parts.map(({ panel }) => panel));
  }

  /** @param {string} title "": no other group has a name either @param {TabSpec[]} specs @returns {HTMLElement} */
  createGroup(title, specs) {
    const available = specs.filter(([, , element]) => customElements.get(element));
    for (const [name, label, element] of available) this.parts.set(name, this.createTab(name, label, element));
    return el("div", { role: "none", "data-title": title || null }, ...available.map(([name]) => this.parts.get(name)?.tab));
  }

  /** @param {string} name @param {string} label @param {string} element */
  createTab(name, label, element) {
    const tab = el("button", { role: "tab", type: "button", id: `tab-${name}`,
      "aria-controls": `panel-${name}`, onclick: () => this.open(name, tab) }, label);
    const panel = /** @type {View} */ (document.createElement(element));
    panel.id = `panel-${name}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    panel.attach(this.store, this.session);
    return { tab, panel };
  }

  /** @param {string} name @param {HTMLElement} tab which stays under the pointer, whatever opens or closes above it */
  open(name, tab) {
    const { top } = tab.getBoundingClientRect();
    this.store.set({ [this.key]: name });
    requestAnimationFrame(() => scrollBy(0, tab.getBoundingClientRect().top - top)); // once the change is drawn
  }

  /** @param {string} _name @returns {boolean} whether the tab can have any content */
  applies(_name) {
    return true;
  }

  draw() {
    const names = [...this.parts.keys()].filter((name) => this.applies(name));
    const wantedTab = this.store.state[this.key]; // an address may name any
    const open = names.includes(wantedTab) ? wantedTab : names[0];
    for (const [name, { tab, panel }] of this.parts) {
      tab.hidden = !names.includes(name);
      tab.setAttribute("aria-selected", String(name === open));
      tab.tabIndex = name === open ? 0 : -1;
      panel.hidden = name !== open;
    }
  }

  /** @param {KeyboardEvent} event @param {HTMLElement[]} tabs arrow keys move between them */
  handleKey(event, tabs) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const visibleTabs = tabs.filter((tab) => !tab.hidden);
    const at = visibleTabs.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const next = visibleTabs[(at + by + visibleTabs.length) % visibleTabs.length];
    next?.focus();
    next?.click();
    event.preventDefault();
    event.stopPropagation();
  }
}
