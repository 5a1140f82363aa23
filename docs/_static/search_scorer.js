// How the search of the site orders what it finds: a page, or a part of one, that is called as what is asked comes
// first; reports of defects, costs and changes come behind the pages that explain.
const BEHIND = /^(CHANGELOG|CONTRIBUTING|ARCHITECTURE|benchmarks\/|docs\/(findings\/|survey|teeth-matrix))/;

var Scorer = {
  score: ([page, _title, anchor, _text, score]) => {
    const asked = (new URLSearchParams(location.search).get("q") || "").trim().toLowerCase();
    const isNamed = asked !== "" && (page.split("/").pop().replace("start-", "") === asked || anchor === `#${asked}`);
    return score + (isNamed ? 100 : 0) - (BEHIND.test(page) ? 50 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
