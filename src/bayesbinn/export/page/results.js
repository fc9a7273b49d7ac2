// What the networks say, as text and bars: probabilities, each network's opinion, how unfamiliar the input is.

const MOST_BARS = 20;
const MOST_OPINIONS = 32;

/** @param {number} share */
export function percent(share) {
  const hundred = 100 * share;
  return `${hundred >= 99.95 || hundred < 0.05 ? hundred.toFixed(0) : hundred.toFixed(1)} %`;
}

/** Four significant digits, without zeros at the end. @param {number} value */
export function short(value) {
  return String(Number(value.toPrecision(4)));
}

/** The probability of each class; if there are many, only of the likeliest. */
export class Bars {
  /** @type {{row: HTMLElement, name: HTMLElement, bar: HTMLElement, number: HTMLElement}[]} */
  #rows = [];

  /** @param {HTMLElement} table @param {string[]} classes */
  constructor(table, classes) {
    this.classes = classes;
    for (let i = 0; i < Math.min(classes.length, MOST_BARS); i++) {
      const row = element("tr", table);
      const name = element("th", row);
      name.setAttribute("scope", "row");
      const bar = element("span", element("td", row), "bar");
      const number = element("td", row, "number");
      this.#rows.push({ row, name, bar, number });
    }
  }

  /** @param {ArrayLike<number> | null} probabilities null: none */
  show(probabilities) {
    let order = Array.from(this.classes, (_, index) => index);
    if (probabilities && this.classes.length > MOST_BARS) order.sort((a, b) => probabilities[b] - probabilities[a]);
    const most = probabilities ? likeliest(probabilities) : -1;
    this.#rows.forEach(({ row, name, bar, number }, place) => {
      const index = order[place];
      name.textContent = this.classes[index];
      bar.style.width = probabilities ? `${100 * probabilities[index]}%` : "0";
      number.textContent = probabilities ? percent(probabilities[index]) : "–";
      row.className = index === most ? "likeliest" : "";
    });
  }
}

/** What each network says by itself; if there are many, only the first. */
export class Opinions {
  /** @type {{item: HTMLElement, name: HTMLElement, number: HTMLElement}[]} made once: they change with every move */
  #items;

  /** @param {HTMLElement} list @param {string[]} classes @param {number} networks */
  constructor(list, classes, networks) {
    this.classes = classes;
    this.#items = Array.from({ length: Math.min(networks, MOST_OPINIONS) }, () => {
      const item = element("li", list);
      return { item, name: element("b", item), number: element("small", item) };
    });
  }

  /** @param {ArrayLike<number>[] | null} members null: none */
  show(members) {
    this.#items.forEach(({ item, name, number }, index) => {
      item.hidden = members === null;
      if (!members) return;
      const most = likeliest(members[index]);
      name.textContent = this.classes[most];
      number.textContent = percent(members[index][most]);
      item.title = `Network ${index + 1}: ${name.textContent}, ${number.textContent}`;
    });
  }
}

/** Each network's probabilities, of a prediction of one example. @param {any} prediction @returns {Float32Array[]} */
export function membersOf({ members, probabilities }) {
  const classes = probabilities.length;
  return Array.from({ length: members.length / classes }, (_, i) => members.subarray(i * classes, (i + 1) * classes));
}

/**
 * How many networks name each class first, such as "8 say 3, 2 say 5".
 * @param {string[]} classes
 * @param {ArrayLike<number>[]} members
 */
export function votes(classes, members) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const each of members) counts.set(likeliest(each), (counts.get(likeliest(each)) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  return sorted.map(([index, count]) => `${count} ${count === 1 ? "says" : "say"} ${classes[index]}`).join(", ");
}

/** The end of the scale on which unfamiliarity is drawn. */
const SCALE_END = 2;

/** @param {HTMLElement} gauge @param {HTMLElement} text @param {number | null} score 1 is the threshold */
export function showUnfamiliarity(gauge, text, score) {
  const mark = /** @type {HTMLElement} */ (gauge.firstElementChild);
  mark.hidden = score === null;
  gauge.dataset.refused = String(score !== null && score > 1);
  if (score === null) return void (text.textContent = "–");
  mark.style.left = `${(100 * Math.min(Math.max(score, 0), SCALE_END)) / SCALE_END}%`;
  text.textContent = `${score.toFixed(2)}, ${score > 1 ? "above" : "within"} the limit of 1`;
}

/** @param {ArrayLike<number>} values */
export function likeliest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** @param {string} name @param {HTMLElement} parent @param {string} [kind] */
export function element(name, parent, kind) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  parent.append(made);
  return made;
}

/** @param {string} id @returns {any} */
export function part(id) {
  return document.getElementById(id);
}
