/**
 * Lines for newcomers, until there is a run: links, and above a recorded run what it is, and a question about its most uncertain
 * step, whose answer is a click away.
 */

import { answer, question } from "../figures/rivals.js";
import { mostUncertain } from "../figures/step-view.js";
import { button, el, replace, scrollToPanels, setText } from "./dom.js";
import { pressHelp } from "./keys.js";
import { View } from "./view.js";

class FirstLook extends View {
  name = el("strong");
  skip = button("Skip", () => {}, { class: "link" }); // any click ends the arrival
  replay = button("Write it again", () => this.store.arrive(), { class: "link" });
  question = button("", () => this.explain(), { class: "link" });
  answer = el("span", { role: "status" });
  exchange = el("p", { hidden: true }, this.question, " ", this.answer);
  lessons = el("a", {}, "Lessons");
  lessonPlan = el("a", { title: "A class of 45 minutes" }, "A class");
  meaning = el("p", {}, "Over each token fall its likeliest rivals, as large as they were likely.");
  introduction = el("span", {}, this.name, ": it continued the grey words. ", this.skip, this.replay, " · ");

  build() {
    replace(this, el("p", {}, this.introduction,
      button("Help", pressHelp, { class: "link" }), " · ",
      button("Practice", () => this.store.set({ panel: "lesson" }), { class: "link" }),
      " · ", this.lessons, " · ", this.lessonPlan), this.meaning, this.exchange);
  }

  draw() {
    const { recording, arriving, runs, about } = this.store.state;
    this.lessons.href = about?.local ? "lessons/index.html" : "lessons";
    this.lessonPlan.href = about?.local ? "class.html" : "class";
    this.hidden = runs.length > 0;
    this.setAttribute("aria-busy", String(!recording)); // its place is kept meanwhile
    const example = this.store.showsRecording ? recording : null; // not beside an encoder or a diffusion model
    this.introduction.hidden = !example;
    this.meaning.hidden = !example || !arriving;
    this.exchange.hidden = !example || arriving;
    const step = example?.trace.steps[mostUncertain(example.trace)];
    if (this.hidden || !example || !step) return;
    setText(this.name, `Example, ${example.name}`);
    setText(this.question, question(example.trace, step));
    if (arriving) setText(this.answer, "");
    if (this.replay.hidden && !arriving && document.activeElement === this.skip) queueMicrotask(() => this.replay.focus());
    this.skip.hidden = !arriving;
    this.replay.hidden = arriving;
  }

  /** Open the panel that answers, at the step and its token. */
  explain() {
    const { recording } = this.store.state;
    const step = recording?.trace.steps[mostUncertain(recording.trace)];
    if (!recording || !step) return;
    this.store.goTo(step.index);
    this.store.set({ panel: "step", candidate: Math.max(0, step.candidates.findIndex(({ id }) => id === step.token_id)) });
    setText(this.answer, answer(recording.trace, step));
    scrollToPanels();
  }
}

customElements.define("first-look", FirstLook);
