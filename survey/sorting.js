(() => {
  "use strict";
  // The table of candidates: a click on a column's name sorts by it, a second one turns that round.
  const table = document.getElementById("clause-table");
  if (!table) return;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => a.localeCompare(b, "en", { numeric: false }));
      if (rows.every(([value]) => value !== "" && !Number.isNaN(Number(value))))
        rows.sort(([a], [b]) => Number(a) - Number(b));
      if (down) rows.reverse();
      body.append(...rows.map(([, row]) => row));
    });
  });
})();
