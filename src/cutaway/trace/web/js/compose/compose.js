/**
 * The tabs for writing: a conversation, a completion, and a text token by token. Knows their names and order, and
 * nothing in them.
 */

import "./chat.js";
import "./completion.js";
import "./typing.js";
import { continuesTexts, generates } from "../state/panels.js";
import { Tabs } from "../parts/tabs.js";

class AskBox extends Tabs {
  label = "How to write";
  key = /** @type {const} */ ("kind");
  /** @type {Record<string, import("../parts/tabs.js").TabSpec[]>} */
  groups = { "": [
    ["chat", "Chat", "chat-box"],
    ["completion", "Completion", "completion-box"],
    ["typing", "Type with the model", "typing-box"],
  ] };

  /** @param {string} name a conversation needs a model that writes and a chat template; typing needs a causal model */
  applies(name) {
    const { about } = this.store.state;
    if (!about) return true;
    if (name === "chat") return about.chat && generates(about);
    return name !== "typing" || (generates(about) && continuesTexts(about));
  }
}

customElements.define("ask-box", AskBox);
