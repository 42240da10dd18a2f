/**
 * The tools of a conversation: functions as JSON, which the model may call or must, and a form for the results of calls.
 *
 * Knows the fields. What a function may be, the server knows; its message is shown beside the field.
 */

import { callText, toolsOf } from "../state/conversation.js";
import { button, el, replace, setText } from "../parts/dom.js";
import { View } from "../parts/view.js";
/** @import { Call, State } from "../state/store.js" */

const EXAMPLE = [{ type: "function", function: {
  name: "get_weather", description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
} }];

/**
 * @param {State} state @param {boolean} isQuestion whether a question is to be answered, and not the result of a call
 * @returns {Record<string, any>} the settings of a request; throws a SyntaxError with a sentence
 */
export function toolSettings({ tools, mustCall }, isQuestion) {
  const functions = toolsOf(tools);
  if (!functions?.length) return {};
  // One call an answer: a small model repeats itself. After a result nothing is required, or it would call for ever.
  return { tools: functions, parallel_tool_calls: false, tool_choice: mustCall && isQuestion ? "required" : "auto" };
}

class ToolsField extends View {
  count = el("span", { class: "faint" });
  field = el("textarea", { rows: 8, id: "tools-json", class: "mono", spellcheck: "false", "aria-describedby": "tools-said",
    oninput: () => this.store.set({ tools: this.field.value }) });
  must = el("input", { type: "checkbox", onchange: () => this.store.set({ mustCall: this.must.checked }) });
  message = el("p", { class: "said-of", id: "tools-said", role: "alert" });
  folded = el("details", {}, el("summary", {}, "Tools", this.count),
    el("label", { class: "faint", for: "tools-json" }, "Functions that the model can call, as JSON. You type what they return."),
    this.field, this.message,
    el("div", { class: "row" }, button("Insert an example", () => this.insert()),
      el("label", {}, this.must, " must call")));

  build() {
    replace(this, this.folded);
  }

  insert() {
    this.store.set({ tools: JSON.stringify(EXAMPLE, null, 1), mustCall: true,
      draft: this.store.state.draft || "What is the weather in Paris?" });
  }

  draw() {
    const { about, tools, mustCall, refusal } = this.store.state;
    this.hidden = Boolean(about?.local); // the calls' grammar is a server's
    if (this.field.value !== tools) this.field.value = tools;
    this.must.checked = mustCall;
    const wrong = problem(tools) ?? (refusal?.param?.startsWith("tool") ? refusal.message : "");
    setText(this.message, wrong);
    this.field.setAttribute("aria-invalid", String(wrong !== ""));
    setText(this.count, tools.trim() && !wrong ? ` · ${toolsOf(tools)?.length} offered` : "");
    if (wrong && !this.folded.open) this.folded.open = true;
  }
}

/** @param {string} tools @returns {string | null} what is wrong with the field; null: nothing that the page knows of */
function problem(tools) {
  try {
    toolsOf(tools);
    return null;
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/**
 * @param {Call} call @param {(result: string) => void} take
 * @returns {HTMLFormElement} a field for what the function returns
 */
export function resultForm(call, take) {
  const field = el("input", { type: "text", id: "tool-result", autocomplete: "off", placeholder: "rain, 12 degrees" });
  return el("form", { class: "result-of", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    take(field.value);
  } }, el("label", { for: field.id }, "What ", el("code", {}, callText(call)), " returns"),
  el("div", { class: "row" }, field, el("button", { class: "primary" }, "Send result")));
}

customElements.define("tools-field", ToolsField);
