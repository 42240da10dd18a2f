/**
 * The settings of the next text, each with its help: four that people use, the others folded. Below them those of the
 * selected run.
 *
 * Knows which settings there are. The server knows which values they may have; its message is shown beside the field
 * that it names.
 */

import "./in-force.js";
import "./price.js";
import { el, replace } from "../parts/dom.js";
import { canvasFields, usual as usualCanvas } from "./canvas-fields.js";
import { dialField, textField } from "./field.js";
import {
  FIELDS, LENGTH, REPETITION, SAMPLING, chainOf, changeSettings, describeSettings, stopsOf, stopsText, styleOf, valueOf,
} from "./parameters.js";
import { presets, stages, styles, usual } from "../figures/catalogue.js";
import { View } from "../parts/view.js";
/** @import { Field } from "./field.js" */
/** @import { Style } from "../figures/catalogue.js" */

/** @typedef {{element: HTMLDetailsElement, count: HTMLElement, names: string[]}} Group */

const SEED = { name: "seed", label: "seed",
  help: "The same seed gives the same text. Empty: the server chooses one, which is shown with the run." };
const STOP = { name: "stop", label: "stop strings",
  help: "The text ends before any of these; one per line, \\n for a line break." };
const PRESET = { name: "preset", label: "preset",
  help: "The order of the sampling stages, as in another engine." };
const CHAIN = { name: "chain", label: "chain",
  help: `The order of the sampling stages, instead of the preset's: ${stages.map(({ name }) => name).join(", ")}.` };

/** The settings that are not folded. */
const USUAL = [...usual, "max_tokens"];

/** Fields that are empty by default. */
const WITHOUT_DEFAULT = ["seed", "stop", "chain"];

class SettingsPanel extends View {
  styles = styles.map((style) => el("button", { type: "button", "aria-pressed": "false",
    title: `${describeSettings(style.settings)}: ${style.help}`, onclick: () => this.put(style.settings) }, style.name));
  voice = el("p", { class: "faint", role: "status" });
  other = el("p", { class: "said-of", role: "alert" });
  presets = el("select", {}, ...Object.keys(presets).map((name) => el("option", { value: name }, name)));
  /** @type {Map<string, Field>} */
  fields = new Map();
  canvas = canvasFields(() => this.store.state.settings["denoise"], (denoise) => this.put({ denoise }));
  canvasCount = el("span", { class: "faint" });
  canvasGroup = el("details", {}, el("summary", {}, "Canvas", this.canvasCount),
    ...[...this.canvas.values()].map(({ element }) => element));
  /** @type {Group[]} */
  groups = [];
  /** @type {unknown} the refusal that is shown */
  shownRefusal = null;
  drawnKey = "";

  build() {
    for (const dial of [...SAMPLING, ...REPETITION, ...LENGTH]) {
      this.fields.set(dial.name, dialField(dial, (text) => this.put({ [dial.name]: valueOf(text ?? "") })));
    }
    this.fields.set("seed", textField(SEED,
      el("input", { type: "text", inputmode: "numeric", autocomplete: "off", size: 20, placeholder: "random" }),
      (text) => this.store.set({ seed: text ?? "" })));
    this.fields.set("stop", textField(STOP, el("textarea", { rows: 2 }),
      (text) => this.put({ stop: stopsOf(text ?? "") })));
    this.fields.set("preset", textField(PRESET, this.presets, (text) => this.put({ preset: text })));
    this.fields.set("chain", textField(CHAIN, el("textarea", { rows: 2, spellcheck: "false" }),
      (text) => this.put({ chain: chainOf(text ?? "") })));
    this.chain = this.fields.get("chain")?.element;
    const inForce = view("in-force");
    const price = view("price-box");
    replace(this, this.other, el("h2", {}, "Settings of the next text"),
      el("div", { class: "styles", role: "group", "aria-label": "Style" }, ...this.styles), this.voice,
      ...USUAL.map((name) => this.fields.get(name)?.element), this.canvasGroup,
      this.group("More filters", SAMPLING.map(nameOf).filter((name) => !USUAL.includes(name))),
      this.group("Repetition", REPETITION.map(nameOf)),
      this.group("Seed, stop strings, order", ["seed", "stop", "preset", "chain"]),
      el("details", { ontoggle: () => price.draw() }, el("summary", {}, "Tokens and cost"), price), inForce);
    for (const part of [inForce, price]) part.attach(this.store, this.session);
  }

  /** @param {string} title @param {string[]} names @returns {HTMLElement} */
  group(title, names) {
    const count = el("span", { class: "faint" });
    const element = el("details", {}, el("summary", {}, title, count),
      ...names.map((name) => this.fields.get(name)?.element));
    this.groups.push({ element, count, names });
    return element;
  }

  /** @param {Record<string, any>} change undefined: the default */
  put(change) {
    const { settings, about } = this.store.state;
    this.store.set({ settings: changeSettings(settings, about?.defaults ?? {}, change) });
  }

  draw() {
    const { settings, seed, about, refusal } = this.store.state;
    if (refusal !== this.shownRefusal) this.drawRefusal();
    const now = JSON.stringify([settings, seed, about]);
    if (now === this.drawnKey) return; // steps change a hundred times per second, settings hardly ever
    this.drawnKey = now;
    const defaults = about?.defaults ?? {};
    this.drawStyles(styleOf({ ...defaults, ...settings }));
    for (const [name, field] of this.fields) field.show(this.valueOf(name), WITHOUT_DEFAULT.includes(name) ? "" : defaults[name]);
    if (this.chain) this.chain.hidden = !("chain" in defaults);
    this.drawCanvas();
    for (const { count, names } of this.groups) {
      const changes = names.filter((name) => name in settings || (name === "seed" && seed)).length;
      count.textContent = changes ? ` · ${changes} changed` : "";
    }
  }

  /** The settings of a canvas, for diffusion models. */
  drawCanvas() {
    const { settings, about } = this.store.state;
    const denoise = settings["denoise"] ?? {};
    this.canvasGroup.hidden = !about?.canvas;
    for (const [name, field] of this.canvas) {
      field.show(denoise[name], usualCanvas(name));
      field.element.hidden = name === "block" && about?.canvas?.blocks === true;
    }
    const changes = Object.keys(denoise).length;
    this.canvasCount.textContent = changes ? ` · ${changes} changed` : "";
  }

  /** @param {string} name @returns {any} undefined: the default */
  valueOf(name) {
    const { settings, seed } = this.store.state;
    if (name === "seed") return seed || undefined;
    if (name === "stop") return settings["stop"] && stopsText(settings["stop"]);
    if (name === "chain") return settings["chain"]?.join(" ");
    return settings[name];
  }

  /** @param {Style | null} style */
  drawStyles(style) {
    this.styles.forEach((button, i) => button.setAttribute("aria-pressed", String(styles[i] === style)));
    this.voice.textContent = style
      ? `${describeSettings(style.settings)}. ${style.help}` : "Settings of your own.";
  }

  /** Show the server's refusal beside the field that it names. */
  drawRefusal() {
    const { refusal } = this.store.state;
    this.shownRefusal = refusal;
    const param = refusal?.param === "max_completion_tokens" ? "max_tokens" : (refusal?.param ?? "");
    for (const [name, field] of this.fields) field.complain(refusal && name === param ? refusal.message : null);
    this.other.textContent = refusal && !FIELDS.includes(param) ? refusal.message : "";
    const group = this.groups.find(({ names }) => names.includes(param));
    if (group) group.element.open = true;
    // Wait until the other parts are drawn, since that moves the field.
    requestAnimationFrame(() => this.fields.get(param)?.element.scrollIntoView({ block: "nearest" }));
  }
}

/** @param {{name: string}} dial @returns {string} */
const nameOf = (dial) => dial.name;

/** @param {string} name @returns {View} */
const view = (name) => /** @type {View} */ (document.createElement(name));

customElements.define("settings-panel", SettingsPanel);
