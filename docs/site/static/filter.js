/**
 * A field above each long table of a page, which shows the rows that have its words.
 */

const LONG = 30; // rows

for (const table of document.querySelectorAll("article table")) {
  const rows = [...(table.tBodies[0]?.rows ?? [])];
  if (rows.length < LONG) continue;
  const field = Object.assign(document.createElement("input"), { type: "search", placeholder: "Search this table" });
  field.setAttribute("aria-label", "Search this table");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  (table.closest(".table-wrapper") ?? table).before(field);
}
