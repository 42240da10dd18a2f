/**
 * The model in the page, as the source of all that it shows: before any part asks. A bar says how much of it has come.
 */

import { use } from "../state/api.js";
import { LocalModel } from "../local/model.js";

const MB = 1e6;
const bar = document.createElement("progress"), words = document.createElement("span"), box = document.createElement("p");
box.id = "loading";
box.append(words, " ", bar);
bar.setAttribute("aria-label", "loading the model");

const files = JSON.parse(document.querySelector("#files")?.textContent ?? "{}");
const model = new LocalModel(new URL("model", document.baseURI).href, files, (done, all) => {
  bar.max = all;
  bar.value = done;
  words.textContent = `loading the model: ${(done / MB).toFixed(1)} of ${(all / MB).toFixed(1)} MB`;
  if (done >= all) box.remove(); // once more where the core computes in the GPU's place
  else if (!box.isConnected) document.body.append(box);
});
model.ready.catch(() => {}).then(() => box.remove());
use(model);
