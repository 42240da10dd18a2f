/**
 * How the next text is to be chosen, each setting with its meaning, and how the selected one was.
 *
 * Knows which settings there are and where they stand. The server says which values they may have,
 * and its sentence stands beside the field that it names.
 */

import "./in-force.js";
import "./price.js";
import { el, replace } from "../parts/dom.js";
import { dialField, textField } from "./field.js";
import {
  CHOOSING, FIELDS, LENGTH, REPETITION, STYLES, changed, stopsOf, stopsText, styleOf, valueOf,
} from "./parameters.js";
import { View } from "../parts/view.js";
/** @import { Field } from "./field.js" */
/** @import { Style } from "./parameters.js" */

/** @typedef {{element: HTMLDetailsElement, count: HTMLElement, names: string[]}} Group */

const SEED = { name: "seed", label: "seed",
  meaning: "Same seed, same text. Empty: one is chosen, and shown with the run." };
const STOP = { name: "stop", label: "stop strings",
  meaning: "The text ends before any of these; one a line, \\n for the end of a line." };
const PRESET = { name: "preset", label: "order of stages",
  meaning: "Whose order the chain has: the same settings mean different things elsewhere." };

export class SettingsPanel extends View {
  styles = STYLES.map((style) => el("button", { type: "button", "aria-pressed": "false",
    title: `temperature ${style.temperature}, top-p ${style.top_p}: ${style.meaning}`,
    onclick: () => this.put({ temperature: style.temperature, top_p: style.top_p }) }, style.name));
  voice = el("p", { class: "faint", role: "status" });
  other = el("p", { class: "said-of", role: "alert" });
  presets = el("select", {});
  /** @type {Map<string, Field>} */
  fields = new Map();
  /** @type {Group[]} */
  groups = [];
  /** @type {unknown} the refusal that was shown */
  shown = null;
  drawn = "";

  build() {
    for (const dial of [...CHOOSING, ...REPETITION, ...LENGTH]) {
      this.fields.set(dial.name, dialField(dial, (text) => this.put({ [dial.name]: valueOf(text ?? "") })));
    }
    this.fields.set("seed", textField(SEED,
      el("input", { type: "text", inputmode: "numeric", autocomplete: "off", size: 20, placeholder: "chosen" }),
      (text) => this.here.set({ seed: text ?? "" })));
    this.fields.set("stop", textField(STOP, el("textarea", { rows: 2 }),
      (text) => this.put({ stop: stopsOf(text ?? "") })));
    this.fields.set("preset", textField(PRESET, this.presets, (text) => this.put({ preset: text })));
    const inForce = view("in-force");
    const price = view("price-box");
    replace(this, this.other, inForce, el("h2", {}, "For the next text"),
      el("div", { class: "styles", role: "group", "aria-label": "Style" }, ...this.styles), this.voice,
      this.group("Choosing", CHOOSING.map(nameOf)), this.group("Repetition", REPETITION.map(nameOf)),
      this.group("Length, seed and order", [...LENGTH.map(nameOf), "seed", "stop", "preset"]),
      el("details", { ontoggle: () => price.draw() }, el("summary", {}, "Tokens and cost"), price));
    for (const part of [inForce, price]) part.attach(this.here, this.runs);
    const [first] = this.groups;
    if (first && matchMedia("(min-width: 56rem)").matches) first.element.open = true;
  }

  /** @param {string} title @param {string[]} names @returns {HTMLElement} */
  group(title, names) {
    const count = el("span", { class: "faint" });
    const element = el("details", {}, el("summary", {}, title, count),
      ...names.map((name) => this.fields.get(name)?.element));
    this.groups.push({ element, count, names });
    return element;
  }

  /** @param {Record<string, any>} change undefined: as usual */
  put(change) {
    const { settings, about } = this.here.state;
    this.here.set({ settings: changed(settings, about?.defaults ?? {}, change) });
  }

  draw() {
    const { settings, seed, about, refused } = this.here.state;
    if (refused !== this.shown) this.drawRefusal();
    const now = JSON.stringify([settings, seed, about]);
    if (now === this.drawn) return; // steps change a hundred times a second, settings hardly ever
    this.drawn = now;
    const usual = about?.defaults ?? {};
    this.drawPresets(about?.presets ?? []);
    this.drawStyles(styleOf({ ...usual, ...settings }));
    for (const [name, field] of this.fields) field.show(this.valueOf(name), name === "seed" || name === "stop" ? "" : usual[name]);
    for (const { count, names } of this.groups) {
      const others = names.filter((name) => name in settings || (name === "seed" && seed)).length;
      count.textContent = others ? ` · ${others} changed` : "";
    }
  }

  /** @param {string} name @returns {any} undefined: as usual */
  valueOf(name) {
    const { settings, seed } = this.here.state;
    if (name === "seed") return seed || undefined;
    if (name === "stop") return settings["stop"] && stopsText(settings["stop"]);
    return settings[name];
  }

  /** @param {Style | null} style */
  drawStyles(style) {
    this.styles.forEach((button, i) => button.setAttribute("aria-pressed", String(STYLES[i] === style)));
    this.voice.textContent = style
      ? `temperature ${style.temperature}, top-p ${style.top_p}. ${style.meaning}` : "A mix of your own.";
  }

  /** @param {string[]} names as the server lists them */
  drawPresets(names) {
    if (this.presets.options.length === names.length) return;
    replace(this.presets, ...names.map((name) => el("option", { value: name }, name)));
  }

  /** What the server said, beside the field that it is about. */
  drawRefusal() {
    const { refused } = this.here.state;
    this.shown = refused;
    const param = refused?.param === "max_completion_tokens" ? "max_tokens" : (refused?.param ?? "");
    for (const [name, field] of this.fields) field.complain(refused && name === param ? refused.message : null);
    this.other.textContent = refused && !FIELDS.includes(param) ? refused.message : "";
    const group = this.groups.find(({ names }) => names.includes(param));
    if (!group) return;
    group.element.open = true;
    // Once the others have drawn themselves: what stands above the field comes back then.
    requestAnimationFrame(() => this.fields.get(param)?.element.scrollIntoView({ block: "nearest" }));
  }
}

/** @param {{name: string}} dial @returns {string} */
const nameOf = (dial) => dial.name;

/** @param {string} name @returns {View} */
const view = (name) => /** @type {View} */ (document.createElement(name));

customElements.define("settings-panel", SettingsPanel);
