/**
 * The model in the page, as the source of all that it shows: before any part asks.
 */

import { use } from "../state/api.js";
import { LocalModel } from "../local/model.js";

const notice = /** @type {HTMLElement} */ (document.querySelector("#notice"));
use(new LocalModel(new URL("model", document.baseURI).href, (done, all) => {
  notice.textContent = done < all ? `loading the model: ${(done / 1e6).toFixed(0)} of ${(all / 1e6).toFixed(0)} MB` : "";
}));
