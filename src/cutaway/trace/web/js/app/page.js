/**
 * The page that runs its own model, from a folder on any host: the served page, with another source.
 */

import { use } from "../state/api.js";
import { LocalModel } from "../local/model.js";

const notice = /** @type {HTMLElement} */ (document.querySelector("#notice"));
use(new LocalModel(new URL("../../../model", import.meta.url).href, (done, all) => {
  notice.textContent = done < all ? `loading the model: ${(done / 1e6).toFixed(0)} of ${(all / 1e6).toFixed(0)} MB` : "";
}));
navigator.serviceWorker?.register(new URL("../../../offline.js", import.meta.url)).catch(() => {}); // without it the page needs a connection
await import("./app.js");
