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
import { canvasFields } from "./canvas-fields.js";
import { dialField, textField } from "./field.js";
import {
  COMPUTING, FIELDS, FORM, LENGTH, ORDER, REPETITION, SAMPLING, changeSettings, describeSettings, jsonError, styleOf, valueOf,
} from "./parameters.js";
import { styles, usual } from "../figures/catalogue.js";
import { View } from "../parts/view.js";
/** @import { Field } from "./field.js" */
/** @import { TextSetting } from "./parameters.js" */
/** @import { About } from "../state/store.js" */
/** @import { Style } from "../figures/catalogue.js" */

/** @typedef {{element: HTMLDetailsElement, count: HTMLElement, names: string[]}} Group */

const SEED = { name: "seed", label: "seed",
  help: "The same seed gives the same text. Empty: the server chooses one, which is shown with the run." };

/** The settings that are not folded. */
const USUAL = [...usual, "max_tokens"];

const TEXTS = [...ORDER, ...COMPUTING, ...FORM];

class SettingsPanel extends View {
  styles = styles.map((style) => el("button", { type: "button", "aria-pressed": "false",
    title: `${describeSettings(style.settings)}: ${style.help}`, onclick: () => this.put(style.settings) }, style.name));
  voice = el("p", { class: "faint", role: "status" });
  other = el("p", { class: "said-of", role: "alert" });
  /** @type {Map<string, Field>} */
  fields = new Map();
  canvas = canvasFields(() => this.store.state.settings["denoise"], () => this.store.state.about?.canvas?.rule ?? {}, (denoise) => this.put({ denoise }));
  canvasCount = el("span", { class: "faint" });
  canvasGroup = el("details", {}, el("summary", {}, "Canvas", this.canvasCount),
    ...[...this.canvas.values()].map(({ element }) => element));
  formless = el("p", { class: "faint" }, "This page cannot make a text fit a form: cutaway serve can.");
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
    for (const setting of TEXTS) this.fields.set(setting.name, this.textField(setting));
    const inForce = view("in-force");
    const price = view("price-box");
    replace(this, this.other, el("h2", {}, "Settings of the next text"),
      el("div", { class: "styles", role: "group", "aria-label": "Style" }, ...this.styles), this.voice,
      ...USUAL.map((name) => this.fields.get(name)?.element), this.canvasGroup,
      this.group("More filters", SAMPLING.map(nameOf).filter((name) => !USUAL.includes(name))),
      this.group("Repetition", REPETITION.map(nameOf)),
      this.group("KV cache, drafts", COMPUTING.map(nameOf)),
      this.group("JSON schema, regex, choice", FORM.map(nameOf), this.formless),
      this.group("Seed, stop strings, order", ["seed", ...ORDER.map(nameOf)]),
      el("details", { ontoggle: () => price.draw() }, el("summary", {}, "Tokens and cost"), price), inForce);
    for (const part of [inForce, price]) part.attach(this.store, this.session);
  }

  /** @param {TextSetting} setting @returns {Field} */
  textField(setting) {
    const { name, choices, lines, read } = setting;
    const input = choices ? el("select", {}, ...choices.map((choice) => el("option", { value: choice }, choice)))
      : el("textarea", { rows: lines, spellcheck: "false" });
    return textField(setting, input, (text) => this.put({ [name]: text === undefined ? undefined : read(text) }));
  }

  /** @param {string} title @param {string[]} names @param {HTMLElement} [more] @returns {HTMLElement} */
  group(title, names, more) {
    const count = el("span", { class: "faint" });
    const element = el("details", {}, el("summary", {}, title, count),
      ...names.map((name) => this.fields.get(name)?.element), more);
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
    this.drawFields(defaults);
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
      field.show(denoise[name], about?.canvas?.rule[name] ?? "");
      field.element.hidden = name === "block" && about?.canvas?.blocks === true;
      const possible = about?.canvas?.choices[name];
      for (const option of field.element.querySelectorAll("option")) option.hidden = possible?.includes(option.value) === false;
    }
    const changes = Object.keys(denoise).length;
    this.canvasCount.textContent = changes ? ` · ${changes} changed` : "";
  }

  /** @param {Record<string, any>} defaults */
  drawFields(defaults) {
    const { settings, seed, about } = this.store.state;
    for (const { name } of [...SAMPLING, ...REPETITION, ...LENGTH]) this.fields.get(name)?.show(settings[name], defaults[name]);
    this.fields.get("seed")?.show(seed || undefined, "");
    for (const setting of TEXTS) {
      const field = this.fields.get(setting.name);
      if (!field) continue;
      const usualText = fieldText(setting, defaults) ?? "";
      addChoice(field.element.querySelector("select"), usualText);
      field.show(fieldText(setting, settings), usualText);
      field.element.hidden = about !== null && !offers(about, setting.name);
    }
    this.formless.hidden = !about?.local;
    for (const { element } of this.groups) element.hidden = [...element.children].slice(1).every((part) => /** @type {HTMLElement} */ (part).hidden);
  }

  /** @param {Style | null} style */
  drawStyles(style) {
    this.styles.forEach((button, i) => button.setAttribute("aria-pressed", String(styles[i] === style)));
    this.voice.textContent = style
      ? `${describeSettings(style.settings)}. ${style.help}` : "Settings of your own.";
  }

  /** @param {string} message of a refusal @param {string} name @returns {string} a text that is no JSON has a mistake of its own */
  sentenceOf(message, name) {
    const value = this.store.state.settings[name];
    return name === "json_schema" && typeof value === "string" ? `json_schema is not JSON: ${jsonError(value)}` : message;
  }

  /** Show the server's refusal beside the field that it names. */
  drawRefusal() {
    const { refusal } = this.store.state;
    this.shownRefusal = refusal;
    const param = refusal?.param === "max_completion_tokens" ? "max_tokens" : (refusal?.param ?? "");
    for (const [name, field] of this.fields) field.complain(refusal && name === param ? this.sentenceOf(refusal.message, name) : null);
    this.other.textContent = refusal && (!FIELDS.includes(param) || this.fields.get(param)?.element.hidden) ? refusal.message : "";
    const group = this.groups.find(({ names }) => names.includes(param));
    if (group) group.element.open = true;
    // Wait until the other parts are drawn, since that moves the field.
    requestAnimationFrame(() => this.fields.get(param)?.element.scrollIntoView({ block: "nearest" }));
  }
}

/** @param {HTMLSelectElement | null} select @param {string} usual a server may draft in a way of its own by default */
function addChoice(select, usual) {
  if (select && usual && ![...select.options].some(({ value }) => value === usual)) select.append(el("option", { value: usual }, usual));
}

/** Settings of a text that is written from left to right. */
const CAUSAL = [...COMPUTING, ...FORM].map(nameOf);

/** @param {About} about @param {string} name @returns {boolean} whether the model's texts have the setting, where it runs */
const offers = ({ canvas, defaults, local }, name) =>
  name in defaults && !local?.lacks.includes(name) && !(canvas && CAUSAL.includes(name));

/** @param {TextSetting} setting @param {Record<string, any>} values @returns {string | undefined} the text of its value; undefined: it has none */
const fieldText = ({ name, write }, values) => (values[name] === undefined || values[name] === null ? undefined : write(values[name]));

/** @param {{name: string}} dial @returns {string} */
function nameOf(dial) {
  return dial.name;
}

/** @param {string} name @returns {View} */
const view = (name) => /** @type {View} */ (document.createElement(name));

customElements.define("settings-panel", SettingsPanel);
