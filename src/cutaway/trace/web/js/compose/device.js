/**
 * Which device computes in a page that runs its own model: the reader's GPU, whose bits were checked, or the processor, and why.
 *
 * Knows what the model says of its device; a page with a server has none of this.
 */

import { button, el, setText } from "../parts/dom.js";
import { View } from "../parts/view.js";
import { checkDevice, useGpu, useProcessor } from "../state/api.js";
import { sentence } from "../state/session.js";

const MB = 1e6;

class DeviceLine extends View {
  line = el("span", { role: "status" });
  again = button("Check again", () => this.check(), { class: "link", title: "compute the texts again whose logits Python recorded" });
  anyway = button("Use the GPU all the same", () => void useGpu(), { class: "link", title: "make it ready, however long it takes, now and at later visits" });
  processor = button("Use the processor", () => void useProcessor(), { class: "link", title: "the same texts, from WebAssembly" });
  isChecking = false;

  build() {
    this.append(el("p", { class: "faint" }, this.line, " ", this.again, " ", this.processor, this.anyway));
  }

  draw() {
    const { device } = this.store.state;
    this.hidden = device === null;
    if (device === null) return;
    const { gpu, reason, isDeclined, refusal, stage, memory, checked } = device;
    this.line.ariaBusy = String(device.stage !== undefined); // a screen reader hears the end, not each kernel
    setText(this.line, this.isChecking ? `checking the GPU (${gpu}): ${stage ?? "it begins"} …`
      : gpu === null ? `Your processor computes, not your GPU: ${reason}.`
        : stage ? `Your GPU (${gpu}) is made ready, with ${((memory ?? 0) / MB).toFixed(1)} MB of its memory: ${stage}.`
        : refusal ? `Your GPU (${gpu}) failed a check: ${refusal}.`
        : `Your GPU computes (${gpu}): the same bits as a processor${checked ? describeLimits(checked) : ", checked on this device"}.`);
    this.again.hidden = gpu === null || stage !== undefined || this.isChecking;
    this.processor.hidden = this.again.hidden;
    this.anyway.hidden = !isDeclined;
  }

  async check() {
    this.isChecking = true;
    this.draw();
    const refusal = await checkDevice().then(() => undefined, sentence);
    this.isChecking = false;
    const { device } = this.store.state; // the processor, if the GPU failed
    if (device) this.store.set({ device: device.gpu === null ? device : { ...device, refusal } });
  }
}

/** @param {import("../state/api.js").Checked} checked @returns {string} what the GPU does not compute, as there was no time to check it */
const describeLimits = ({ right, all, rows, longest }) =>
  ` in ${right} of ${all} texts, and there was no time for more: until "Check again" has computed them, it reads ${rows === 1 ? "one token" : `at most ${rows} tokens`} `
  + `at a time, and your processor goes on with texts of more than ${longest}`;

customElements.define("device-line", DeviceLine);
