/**
 * The drawing of the machine: from the text so far through the model and the sampler to the next token, and back. Each
 * station shows its figures of the selected step and opens the panel that has more. A pulse runs along while a text is
 * written.
 */

import { drawing } from "./machine-drawings.js";
import { button, el, morph, setText, token } from "./dom.js";
import { whySentence } from "../figures/endings.js";
import { stations } from "../figures/machine.js";
import { PANELS, applies } from "../state/panels.js";
import { View } from "./view.js";
/** @import { Figure, Station } from "../figures/machine.js" */
/** @import { Run } from "../state/store.js" */
/** @import { Trace } from "../state/trace.js" */

const OFTEN = 100; // milliseconds: figures that change more often cannot be read, and would cost frames

class MachineView extends View {
  list = el("ol");
  pulse = el("i", { class: "pulse", "aria-hidden": "true", onanimationend: () => this.handlePulseEnd() });
  again = button("", () => this.open("timelines"), { title: "what each step cost, and how sure it was: Timelines" });
  endButton = button("", () => this.open("why"));
  caption = el("span", { class: "faint about" });
  loop = el("p", { class: "loop" }, this.caption, this.again, this.endButton);
  /** @type {Trace | null} */
  shownTrace = null;
  /** How many steps and passes it had when the last pulse began. */
  pulsed = 0;
  drawnAt = -Infinity; // when it was last drawn
  timer = 0;

  build() {
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", "The machine at this step");
    this.list.addEventListener("click", (event) => this.handleClick(event));
    this.append(el("div", { class: "works" }, this.list, this.pulse), this.loop);
  }

  draw() {
    const { run } = this.store;
    this.hidden = !run?.trace.known;
    if (!run?.trace.known) return;
    this.beat(run);
    const wait = this.drawnAt + OFTEN - performance.now();
    if (wait <= 0) this.show(run);
    else this.timer ||= window.setTimeout(() => this.late(), wait);
  }

  late() {
    this.timer = 0;
    if (this.store.run?.trace.known) this.show(this.store.run);
  }

  /** @param {Run} run */
  show(run) {
    this.drawnAt = performance.now();
    const { state } = this.store;
    const { passes, steps } = run.trace;
    const pass = passes[state.pass ?? passes.length - 1];
    const stationList = stations(run.trace, steps[state.step], this.session.insides.ready, pass);
    morph(this.list, el("ol", {}, ...stationList.map((station, i) => this.station(station, i + 1))));
    const here = stationList.find(({ panel }) => panel === state.panel);
    setText(this.caption, here ? `${here.name}: ${here.caption}` : "");
    this.drawLoop(run);
  }

  /** @param {Station} station @param {number} place from 1 @returns {HTMLElement} a button where a panel has more */
  station({ id, name, panel, figures, caption, picture }, place) {
    const opens = this.can(panel);
    const parts = [drawing(id, picture), el("span", { class: "name" }, name),
      el("span", { class: "figures" }, ...figures.map(figure)), el("span", { class: "caption" }, caption)];
    const pressed = this.store.state.panel === panel;
    return el("li", { class: `station at-${id}`, style: { "--place": place } }, opens
      ? el("button", { type: "button", class: "part-of", "data-panel": panel, "aria-pressed": pressed ? "true" : "false",
        title: `${caption} Opens: ${PANELS.get(panel)?.label}.` }, ...parts)
      : el("div", { class: "part-of", title: caption }, ...parts));
  }

  /** @param {string} panel @returns {boolean} whether this page has it, for this model */
  can(panel) {
    const element = PANELS.get(panel)?.element;
    return element !== undefined && customElements.get(element) !== undefined && applies(panel, this.store.state);
  }

  /** @param {Event} event */
  handleClick(event) {
    const panel = /** @type {Element} */ (event.target).closest("[data-panel]")?.getAttribute("data-panel");
    if (panel) this.open(panel);
  }

  /** @param {string} panel */
  open(panel) {
    this.store.set({ panel });
    const next = this.nextElementSibling;
    if (next && next.getBoundingClientRect().top > innerHeight * 0.7) next.scrollIntoView(); // on a phone
  }

  /** @param {Run} run the way back, from the token to the text */
  drawLoop({ trace, live }) {
    const { passes, steps, end } = trace;
    const count = trace.known?.decoder ? `${passes.length} passes` : `${steps.length} steps`;
    setText(this.again, live ? `… and again: ${count} so far` : `… and again: ${count}`);
    this.endButton.hidden = !end;
    this.endButton.title = end ? whySentence(trace) : "";
    setText(this.endButton, "why it ended");
  }

  // -- the pulse ----------------------------------------------------------------------------------

  /** @param {Run} run begin a pulse for a new token, unless one is under way: then its end begins the next */
  beat({ trace, live }) {
    const count = trace.steps.length + trace.passes.length;
    if (trace !== this.shownTrace) this.pulsed = 0;
    this.shownTrace = trace;
    if (!live || count === this.pulsed || this.pulse.classList.contains("runs")) return;
    this.pulsed = count;
    this.pulse.classList.add("runs");
  }

  handlePulseEnd() {
    this.pulse.classList.remove("runs");
    const { run } = this.store;
    if (run?.live) requestAnimationFrame(() => this.beat(run)); // a frame without the class lets the animation begin again
  }
}

/** @param {Figure} figure @returns {HTMLElement} its words, with what it means */
function figure({ gloss, words, letter, colour, minor }) {
  const mark = letter ? [el("span", { class: "letter", style: { "--hue": colour } }, letter), " "] : [];
  return el("span", { class: minor ? "figure minor" : "figure", title: gloss }, ...mark, ...words.map((word) => (typeof word === "string" ? word : token(word.token))));
}

customElements.define("machine-view", MachineView);
