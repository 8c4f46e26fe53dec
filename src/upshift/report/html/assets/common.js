// What the other scripts share: elements, what is kept in the page, and numbers as the rest of the page writes them.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const kept = (id) => JSON.parse(document.getElementById(id).textContent);
const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const once = (call) => {
  let found;
  return () => (found ??= call());
};
const announcer = make("div", { class: "hidden", "aria-live": "polite" });
document.body.append(announcer);

const figures = (value, count) => (Math.abs(value) >= 10 ** count - 0.5 && Math.abs(value) < 1e9
  ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(count))));
const size = (value) => {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return (unit && Math.abs(value) < 99.95 ? figures(value, 3) : value.toFixed(0)) + " " + units[unit];
};
const clock = (seconds) => {
  if (seconds < 60) return figures(seconds, 3) + " s";
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};
const duration = (seconds) => (seconds < 0.9995 ? `${(seconds * 1000).toFixed(0)} ms` : clock(seconds));
const amount = (value, unit) => {
  if (unit === "bytes") return size(value);
  if (unit === "bytes/s") return size(value) + "/s";
  if (unit === "s") return clock(value);
  if (unit === "duration") return duration(value);
  return unit ? `${figures(value, 3)} ${unit}` : figures(value, 4);
};
