/**
 * Tabs: several parts in one place, of which one is open at a time.
 */

import { el, replace } from "./dom.js";
import { View } from "./view.js";

/** @typedef {[name: string, label: string, element: string]} TabSpec */

export class Tabs extends View {
  /** @type {TabSpec[]} in order; those whose element is not defined are left out, since an exported file has fewer */
  all = [];
  /** @type {"panel" | "kind" | "lesson"} the field of the store that names the open tab */
  key = "panel";
  label = "";
  /** @type {Map<string, {tab: HTMLElement, panel: View}>} */
  parts = new Map();

  build() {
    for (const [name, label, element] of this.all) {
      if (customElements.get(element)) this.parts.set(name, this.createTab(name, label, element));
    }
    const tabs = [...this.parts.values()].map(({ tab }) => tab);
    const list = el("div", { class: "tabs", role: "tablist", "aria-label": this.label }, ...tabs);
    list.addEventListener("keydown", (event) => this.handleKey(event, tabs));
    replace(this, list, ...[...this.parts.values()].map(({ panel }) => panel));
  }

  /** @param {string} name @param {string} label @param {string} element */
  createTab(name, label, element) {
    const tab = el("button", { role: "tab", type: "button", id: `tab-${name}`,
      "aria-controls": `panel-${name}`, onclick: () => this.store.set({ [this.key]: name }) }, label);
    const panel = /** @type {View} */ (document.createElement(element));
    panel.id = `panel-${name}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    panel.attach(this.store, this.session);
    return { tab, panel };
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
