(() => {
  "use strict";
  const by = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  for (const element of all(".needs-script")) element.hidden = false;

  // Light and dark: what the reader chose, else what the system says.
  const themes = ["automatic", "dark", "light"];
  const button = by("theme");
  const stored = () => { try { return localStorage.getItem("conformance-theme"); } catch { return null; } };
  const store = (name) => { try { localStorage.setItem("conformance-theme", name); } catch { /* no storage */ } };
  const paint = (name) => {
    if (name === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.dataset.theme = name;
  };
  if (button) {
    paint(themes.includes(stored()) ? stored() : "automatic");
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = themes[(themes.indexOf(button.dataset.theme) + 1) % themes.length];
      paint(next);
      store(next);
    });
  }

  // A link into a closed part opens it.
  const reveal = () => {
    const target = by(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
    const summary = target.querySelector(":scope > summary");
    if (summary) summary.focus({ preventScroll: true });
  };
  addEventListener("hashchange", reveal);
  // A second click on the same link changes no hash.
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) setTimeout(reveal);
  });
  if (location.hash) reveal();

  for (const control of all("[data-open], [data-close]")) {
    const open = "open" in control.dataset;
    const list = by(`${control.dataset.open ?? control.dataset.close}-list`);
    control.addEventListener("click", () => {
      for (const element of all(open ? "details" : "details.failure", list)) element.open = open;
    });
  }

  for (const copy of all("button.copy")) {
    const code = copy.previousElementSibling;
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        copy.textContent = "Selected";
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
  }

  // The table of clauses: every chosen box of a group is a choice, groups and words must all hold.
  const form = by("filters");
  if (!form) return;
  const search = by("search");
  const sentences = new Map(all("#requirements dt").map(
    (term) => [term.dataset.slug, term.nextElementSibling.textContent]));
  const table = by("clause-table");
  const entries = [];
  for (const body of table.tBodies) {
    const head = body.querySelector("tr.family");
    const who = head ? head.textContent : "";
    for (const row of all("tr.r", body)) {
      const name = row.cells[0];
      const slug = [...name.childNodes].filter((node) => node.nodeName !== "SMALL").map((node) => node.textContent).join("").trim();
      const status = row.querySelector(".pill").classList[1];
      entries.push({
        row, body, status, level: row.cells[1].textContent.trim(), family: slug.split(".")[0],
        candidate: body.dataset.candidate, dtype: row.cells[2].textContent.trim().split("  "),
        text: `${row.textContent} ${who} ${sentences.get(slug) ?? ""}`.toLowerCase(),
      });
    }
  }
  const chosen = () => Object.fromEntries(all("fieldset", form).map((group) => [
    group.dataset.filter, all("input:checked", group).map((box) => box.value)]));
  const fits = (value, wanted) =>
    !wanted || !wanted.length || wanted.some((one) => (Array.isArray(value) ? value.includes(one) : value === one));
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = chosen();
    const living = new Map();
    let count = 0;
    for (const entry of entries) {
      const shown = Object.entries(wanted).every(([name, values]) => fits(entry[name], values))
        && words.every((word) => entry.text.includes(word));
      entry.row.hidden = !shown;
      if (shown) { count += 1; living.set(entry.body, true); }
    }
    for (const body of table.tBodies) body.hidden = !living.has(body);
    by("row-count").textContent = `${count} of ${entries.length} results`;
    by("nothing").hidden = count > 0;
    table.tHead.hidden = count === 0;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  by("clear").addEventListener("click", () => { form.reset(); search.focus(); });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; filter(); }
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    search.focus();
  });
  filter();
})();
