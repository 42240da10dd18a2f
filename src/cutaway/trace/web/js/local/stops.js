/**
 * The text of a run's tokens, as far as it is certain: before a stop string, and in whole characters
 * (src/cutaway/engine/stops.py).
 */

export class StoppedText {
  /** @param {string[]} stops */
  constructor(stops) {
    this.stops = [...stops].sort((a, b) => bytesOf(b).length - bytesOf(a).length).map((text) => ({ text, bytes: bytesOf(text) }));
    /** @type {number[]} */
    this.heldBack = [];
    /** @type {string | null} the stop string that was completed */
    this.match = null;
    this.decoder = new TextDecoder();
  }

  /** @param {Uint8Array} bytes of a token @returns {string} what is certain now */
  push(bytes) {
    for (const byte of bytes) {
      this.heldBack.push(byte);
      const match = this.stops.find((stop) => endsWith(this.heldBack, stop.bytes, stop.bytes.length));
      if (match) {
        this.match = match.text;
        return this.release(this.heldBack.length - match.bytes.length, 0);
      }
    }
    const pending = Math.max(0, ...this.stops.map(({ bytes: stop }) => longestPrefix(this.heldBack, stop)));
    return this.release(this.heldBack.length - pending, pending);
  }

  /** @returns {string} what was held back, now that nothing follows */
  end() {
    return this.release(this.heldBack.length, 0) + this.decoder.decode();
  }

  /** @param {number} count @param {number} keep */
  release(count, keep) {
    const certain = this.heldBack.slice(0, count);
    this.heldBack = keep ? this.heldBack.slice(-keep) : [];
    return this.decoder.decode(Uint8Array.from(certain), { stream: true });
  }
}

/** @param {string} text */
const bytesOf = (text) => new TextEncoder().encode(text);

/** @param {number[]} bytes @param {Uint8Array} needle @param {number} count of its first bytes */
function endsWith(bytes, needle, count) {
  const from = bytes.length - count;
  return from >= 0 && needle.subarray(0, count).every((byte, i) => bytes[from + i] === byte);
}

/** @param {number[]} bytes @param {Uint8Array} needle @returns {number} how many of its first bytes they end with, less than all */
function longestPrefix(bytes, needle) {
  for (let count = needle.length - 1; count > 0; count--) if (endsWith(bytes, needle, count)) return count;
  return 0;
}
