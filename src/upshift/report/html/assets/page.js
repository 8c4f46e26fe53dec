// The page as a whole: frames, colours, printing, and loading itself again while a run goes on.

const memory = {
  get(store, key) { try { return JSON.parse(store().getItem(key)); } catch { return null; } },
  set(store, key, value) { try { store().setItem(key, JSON.stringify(value)); } catch { /* not allowed here */ } },
};
const session = () => window.sessionStorage;
const local = () => window.localStorage;

// Frames tell how high they are; those of Plotly get the script that draws them.
const frames = all("iframe");
window.addEventListener("message", ({ source, data }) => {
  for (const frame of frames) {
    if (frame.contentWindow === source && Number.isFinite(data)) frame.style.height = `${Math.min(Math.max(data, 40), 900)}px`;
  }
});
for (const frame of frames) frame.contentWindow.postMessage("height", "*"); // those that told it before anybody heard
for (const frame of frames.filter((one) => one.dataset.library)) {
  frame.srcdoc = `${frame.dataset.document}<script>${kept(frame.dataset.library)}<\/script><script>${frame.dataset.draw}<\/script>`;
}

prepareTables(document);
const tasks = all("[data-tasks]").map((box) => new Tasks(box));
prepareCharts(document);

// Colours.
const theme = document.getElementById("theme");
const themes = ["system", "light", "dark"];
const wear = (chosen) => {
  const known = themes.includes(chosen) ? chosen : "system";
  document.documentElement.dataset.theme = known;
  theme.setAttribute("aria-label", known === "system" ? "Colours: as the system has them" : `Colours: ${known}`);
  theme.textContent = { system: "◐", light: "○", dark: "●" }[known];
  recolour();
};
wear(memory.get(local, "upshift theme"));
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
  memory.set(local, "upshift theme", next);
  wear(next);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

// Printing opens what is closed, on white.
const MOST_PRINTED = 40;
let opened = [], worn;
window.addEventListener("beforeprint", () => {
  worn = document.documentElement.dataset.theme;
  wear("light");
  opened = openers.filter((opener) => !isOpen(opener)).slice(0, MOST_PRINTED);
  for (const opener of opened) openRow(opener, true);
  drawAll();
});
window.addEventListener("afterprint", () => {
  wear(worn);
  for (const opener of opened) openRow(opener, false);
});

// A run that goes on: the file is written anew every few seconds, and the page loads it again where it was.
const place = "upshift " + document.body.dataset.run;
const before = memory.get(session, place);
if (before) {
  memory.set(session, place, null);
  for (const opener of openers) if (before.open.includes(opener.getAttribute("aria-controls"))) openRow(opener, true);
  for (const table of tasks) {
    const was = before.tasks[table.box.dataset.tasks];
    if (was) {
      table.sort = was.sort;
      table.search.value = was.search;
      table.choose();
      if (was.open !== undefined) table.open(was.open);
    }
  }
  const read = document.getElementById(before.at);
  window.scrollBy({ top: read ? read.getBoundingClientRect().top - before.top : before.top, behavior: "instant" });
} else {
  reveal();
}
const every = Number(document.body.dataset.every);
const pause = document.getElementById("pause");
const reload = () => {
  if (pause.getAttribute("aria-pressed") === "true" || document.hidden || document.querySelector(".tip")) return;
  // What is read stays where it is, whatever comes above it.
  const above = all("section[id], tbody[id], article[id]").filter((one) => one.getBoundingClientRect().top < innerHeight / 3).pop();
  memory.set(session, place, {
    at: above ? above.id : "",
    top: above ? above.getBoundingClientRect().top : window.scrollY,
    open: openers.filter(isOpen).map((opener) => opener.getAttribute("aria-controls")),
    tasks: Object.fromEntries(tasks.map((table) => [table.box.dataset.tasks, { sort: table.sort, search: table.search.value, open: table.open_task }])),
  });
  window.location.reload();
};
if (every && pause) {
  history.scrollRestoration = "manual";
  // A reload may be under way when it is pressed: the page that comes then waits, too.
  const paused = place + " paused";
  const wait = (waits) => { pause.setAttribute("aria-pressed", String(waits)); memory.set(session, paused, waits); };
  wait(memory.get(session, paused) === true);
  pause.addEventListener("click", () => wait(pause.getAttribute("aria-pressed") !== "true"));
  window.setInterval(reload, every * 1000);
}
