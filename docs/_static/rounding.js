/* A search box above the tables of "Who rounds how": it shows the rows that have all the words. Without it the page has
   all rows. The words are kept in the address, so that a search can be linked: who-rounds-how.html?find=img_as_ubyte */
document.addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table.rounding")];
  if (!tables.length) return;
  const rows = tables.flatMap((table) => [...table.querySelectorAll("tbody tr")]);
  const texts = rows.map((row) => {
    const cells = [...row.cells].map((cell, k) => {
      const label = k ? cell.querySelector("em") : null; // labels are in every row
      return label ? cell.textContent.replace(label.textContent, "") : cell.textContent;
    });
    return cells.join(" ").toLowerCase();
  });
  const box = document.createElement("div");
  box.className = "find-rows";
  box.setAttribute("role", "search");
  box.innerHTML =
    '<label for="find-rows">Find a function, a system or a word</label>' +
    '<input id="find-rows" type="search" autocomplete="off" spellcheck="false" ' +
    'placeholder="img_as_ubyte, scl_slope, away from zero">' +
    '<output for="find-rows"></output>';
  tables[0].closest("section").before(box);
  const [input, output] = [box.querySelector("input"), box.querySelector("output")];

  function show() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, k) => {
      row.hidden = !words.every((word) => texts[k].includes(word));
      shown += !row.hidden;
    });
    tables.forEach((table) => {
      table.closest("section").hidden = !table.querySelector("tbody tr:not([hidden])");
    });
    output.value = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
    const address = new URL(location.href);
    if (words.length) address.searchParams.set("find", input.value);
    else address.searchParams.delete("find");
    history.replaceState(null, "", address);
  }

  input.addEventListener("input", show);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    input.value = "";
    show();
  });
  input.value = new URL(location.href).searchParams.get("find") || "";
  show();
});
