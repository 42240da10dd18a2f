/**
 * The panel Practice: exercises by hand, how a mistake grows, and a text that does not stop.
 *
 * Knows their names and order, and nothing in them.
 */

import "./practice.js";
import "./snowball.js";
import "./stop.js";
import { Tabs } from "../parts/tabs.js";

class LessonPanel extends Tabs {
  label = "Practice";
  key = /** @type {const} */ ("lesson");
  /** @type {Record<string, import("../parts/tabs.js").TabSpec[]>} */
  groups = { "": [
    ["practice", "Practice by hand", "practice-lesson"],
    ["snowball", "How a mistake grows", "snowball-lesson"],
    ["stop", "Why won’t it stop?", "stop-lesson"],
  ] };
}

customElements.define("lesson-panel", LessonPanel);
