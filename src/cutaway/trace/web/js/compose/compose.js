/**
 * Three ways to write with the model: a conversation, a text that goes on, and token by token.
 * Knows their names and order, and nothing in them.
 */

import "./chat.js";
import "./completion.js";
import "./typing.js";
import { Tabs } from "../parts/tabs.js";

class AskBox extends Tabs {
  label = "How to write";
  key = /** @type {const} */ ("kind");
  /** @type {import("../parts/tabs.js").Part[]} */
  all = [
    ["chat", "Chat", "chat-box"],
    ["completion", "Completion", "completion-box"],
    ["typing", "Type with the model", "typing-box"],
  ];

  /** @param {string} name a conversation needs a template, and typing a model that writes from left to right */
  applies(name) {
    const { about } = this.store.state;
    if (name === "chat") return about?.chat !== false;
    return name !== "typing" || !about?.canvas;
  }
}

customElements.define("ask-box", AskBox);
