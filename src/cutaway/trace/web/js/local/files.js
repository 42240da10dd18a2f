/**
 * The files of a model in a page's folder: described in one, weights in parts whose hashes it names.
 *
 * Knows how they are fetched, kept by the browser and checked; not what is in them.
 */

/**
 * @typedef {{name: string, bytes: number, sha256: string}} Part
 * @typedef {(done: number, all: number) => void} Progress of bytes
 */

const KEPT = "cutaway-weights";

/** @param {string} folder @param {string} name @returns {Promise<Response>} */
export async function fetched(folder, name) {
  let answer;
  try {
    answer = await fetch(`${folder}/${name}`);
  } catch {
    throw new Error(`${name} cannot be fetched: is there a connection?`);
  }
  if (!answer.ok) throw new Error(`${name} cannot be fetched: the host answered ${answer.status}`);
  return answer;
}

/**
 * The parts one after the other, each checked. What was fetched before comes from the browser.
 * @param {string} folder @param {Part[]} parts @param {Uint8Array} into @param {Progress} progress
 */
export async function fill(folder, parts, into, progress) {
  const kept = await caches?.open(KEPT).catch(() => null);
  let at = 0;
  for (const part of parts) {
    into.set(await checked(folder, part, kept ?? null), at);
    progress((at += part.bytes), into.length);
  }
}

/** @param {string} folder @param {Part} part @param {Cache | null} kept @returns {Promise<Uint8Array>} */
async function checked(folder, part, kept) {
  const address = new URL(`${folder}/${part.name}?${part.sha256.slice(0, 16)}`, location.href).href;
  const known = await kept?.match(address);
  if (known) {
    const bytes = new Uint8Array(await known.arrayBuffer());
    if (await isWhole(bytes, part)) return bytes;
    await kept?.delete(address); // the browser's own copy was damaged
  }
  const answer = await fetched(folder, part.name), copy = answer.clone();
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (!(await isWhole(bytes, part))) throw new Error(`${part.name} was damaged on its way, or on its host: export the page again`);
  await kept?.put(address, copy).catch(() => {}); // where the browser has no more room, it is fetched again
  return bytes;
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {Part} part */
async function isWhole(bytes, part) {
  if (bytes.length !== part.bytes) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("") === part.sha256;
}
