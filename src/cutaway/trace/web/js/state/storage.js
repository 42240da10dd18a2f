/**
 * What the browser keeps for the page: for the tab, or for later visits.
 *
 * A browser that blocks storage, or sandboxes the page, keeps it as long as the page is open.
 */

/** @typedef {"sessionStorage" | "localStorage"} Place */

/** @type {Map<string, string>} what the browser did not take */
const untaken = new Map();

/** @param {Place} place @param {string} name @returns {string | null} */
export function recall(place, name) {
  try {
    return globalThis[place].getItem(name);
  } catch {
    return untaken.get(name) ?? null;
  }
}

/** @param {Place} place @param {string} name @param {string | null} value null: nothing is kept any longer */
export function keep(place, name, value) {
  try {
    if (value === null) globalThis[place].removeItem(name);
    else globalThis[place].setItem(name, value);
  } catch {
    if (value === null) untaken.delete(name);
    else untaken.set(name, value);
  }
}
