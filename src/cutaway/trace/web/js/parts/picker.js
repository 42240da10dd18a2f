/**
 * The header of the page: the selected run, its seed and its file, the served model, and the field for an API key.
 */

import { setKey } from "../state/api.js";
import { lineage, titleOf } from "../figures/branches.js";
import { button, copyButton, el, replace, setText } from "./dom.js";
import { exportRun } from "../state/export.js";
import { pressHelp } from "./keys.js";
import { save } from "./save.js";
import { sentence } from "../state/session.js";
import { View } from "./view.js";
/** @import { Run } from "../state/store.js" */

class RunPicker extends View {
  choice = el("select", { "aria-label": "Run", onchange: () => this.store.select(Number(this.choice.value)) });
  stop = button("Stop", () => this.store.run && this.session.stop(this.store.run));
  seed = el("output", { class: "mono seed" });
  copy = copyButton("Copy", () => this.seed.textContent ?? "", { "aria-label": "Copy the seed" });
  saving = button("Download", () => this.download(), { title: "the run as a trace, .jsonl" });
  removing = button("Remove", () => this.store.run && this.session.remove(this.store.run),
    { title: "remove this run from the page; its forks stay" });
  served = el("span", { class: "faint served" });
  models = el("select", { "aria-label": "Model", hidden: true, onchange: () => loadModel(this.models.value) });
  seeds = el("span", { class: "row" }, el("span", { class: "faint" }, "seed"), this.seed, this.copy.element);
  large = button("Aa", () => this.store.set({ large: !this.store.state.large }),
    { "aria-label": "Large type", title: "large type, for a projector (l)" });
  form = button("New text", () => toggleForm(), { class: "form", title: "the form to write with, which large type hides" });
  lock = lock();

  build() {
    const help = button("?", pressHelp, { "aria-label": "Help", title: "help and keys (?)" });
    replace(this, this.choice, this.stop, this.seeds,
      el("span", { class: "row" }, ...this.opener(), this.saving, this.removing, this.form, this.large, help), this.models, this.served, this.lock);
  }

  draw() {
    const { runs, about, locked } = this.store.state;
    const { run } = this.store;
    this.offer(runs, run);
    this.large.setAttribute("aria-pressed", String(this.store.state.large));
    this.stop.hidden = !run?.live;
    this.saving.disabled = !run?.trace.known || lineage(runs, run).some((ancestor) => ancestor.live);
    this.removing.hidden = !runs.length || !run;
    this.tellSeed(run?.trace.known?.seed ?? null);
    const several = about?.models ?? [];
    setText(this.served, about ? `${several.length ? "" : `${about.model} · `}cutaway ${about.version}` : "");
    this.models.hidden = !several.length;
    if (several.length !== this.models.options.length) replace(this.models, ...several.map((name) => el("option", { value: name }, name)));
    this.models.value = about?.model ?? "";
    this.lock.hidden = !locked;
  }

  /** @param {Run[]} runs @param {Run | null} selected */
  offer(runs, selected) {
    this.choice.disabled = !runs.length;
    const names = runs.length ? runs.map((run) => nameOf(runs, run))
      : [selected ? "Example (recorded)" : "no run yet"];
    while (this.choice.options.length > names.length) this.choice.lastChild?.remove();
    for (const [i, name] of names.entries()) {
      const option = this.choice.options[i] ?? this.choice.appendChild(el("option"));
      setText(option, name);
      option.value = String(runs[i]?.id ?? "");
    }
    this.choice.selectedIndex = selected && runs.length ? runs.indexOf(selected) : runs.length ? -1 : 0;
  }

  /** @param {string | null} seed */
  tellSeed(seed) {
    this.seeds.hidden = seed === null;
    if (this.seed.textContent === (seed ?? "")) return;
    setText(this.seed, seed ?? "");
    this.copy.forget();
  }

  async download() {
    const { run, state } = this.store;
    if (!run) return;
    try {
      const { name, bytes } = await exportRun(state.runs, run);
      save(name, bytes);
    } catch (error) {
      this.store.set({ notice: sentence(error) });
    }
  }

  /** @returns {HTMLElement[]} a field for files that looks like a button */
  opener() {
    const field = el("input", { type: "file", id: "open-traces", class: "visually-hidden",
      multiple: true, accept: ".jsonl,.gz", onchange: () => this.open(field) });
    const title = "traces, .jsonl or .gz; you can also drop them on the page";
    return [field, el("label", { class: "button", for: field.id, title }, "Open…")];
  }

  /** @param {HTMLInputElement} field */
  async open(field) {
    const files = [...(field.files ?? [])];
    field.value = ""; // so that the same file can be opened again
    await this.session.openAll(files);
  }
}

/** @param {Run[]} runs @param {Run} run @returns {string} */
const nameOf = (runs, run) => `${run.live ? "● " : ""}${titleOf(runs, run)}${run.live ? " (live)" : ""}`;

/** @param {string} model to reload the page with, since the runs are of another model */
const loadModel = (model) => location.assign(`?model=${encodeURIComponent(model)}`);

/** @returns {HTMLFormElement} the field for a key */
function lock() {
  const field = el("input", { type: "password", id: "server-key", autocomplete: "off", required: true });
  return el("form", { class: "row lock", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    setKey(field.value);
    location.reload();
  } }, el("label", { for: "server-key" }, "API key of the server"), field,
  el("button", { class: "primary" }, "Unlock"));
}

/** Show the form beside the text in large type, or hide it; a run that begins hides it, too. */
function toggleForm() {
  const isOpen = document.querySelector(".write")?.classList.toggle("open");
  if (isOpen) /** @type {HTMLElement | null} */ (document.querySelector(".write textarea"))?.focus();
}

customElements.define("run-picker", RunPicker);
