// Terminal colours: shows text with SGR escape sequences as spans. Other escape sequences are not supported.
const COLOURS = ["#555555", "#e53935", "#43a047", "#fb8c00", "#1e88e5", "#8e24aa", "#00acc1", "#9e9e9e"];
const GROUND_ALPHA = 0.35;  // keeps text legible in light and dark themes

// One of the 256 colours: 16 named colours, a colour cube, and greys.
function indexed(number) {
  if (!(number >= 0 && number < 256)) return null;
  if (number < 16) return number === 8 ? "#808080" : COLOURS[number % 8];
  const levels = number < 232 ? [36, 6, 1].map((size) => Math.floor((number - 16) / size) % 6).map((level) => level && 55 + 40 * level)
    : Array(3).fill(8 + 10 * (number - 232));
  return "#" + levels.map((level) => level.toString(16).padStart(2, "0")).join("");
}

// The colour after code 38, 48 or 58, and the number of arguments that it uses.
function extended([kind, ...rest]) {
  if (kind === 5) return {colour: indexed(rest[0]), taken: 2};
  if (kind !== 2) return {colour: null, taken: 1};
  const isWhole = rest.length > 2 && rest.slice(0, 3).every((level) => level >= 0 && level < 256);
  return {colour: isWhole ? "rgb(" + rest.slice(0, 3).join(", ") + ")" : null, taken: 4};
}

function ground(colour) {
  return colour && "color-mix(in srgb, " + colour + " " + 100 * GROUND_ALPHA + "%, transparent)";
}

// Applies an SGR sequence to a style and returns the new style. Unknown codes change nothing.
function styled(style, sequence) {
  const made = {...style}, codes = sequence.split(";");
  while (codes.length) {
    // The arguments of a colour or an underline may also follow after colons: 38:2::1:2:3, 4:3.
    const [code, ...own] = codes.shift().split(":").map(Number);
    if (code === 38 || code === 48 || code === 58) {
      if (own.length > 4 && own[0] === 2) own.splice(1, 1);  // the colour space
      const {colour, taken} = extended(own.length ? own : codes.map(Number));
      if (!own.length) codes.splice(0, taken);
      if (colour && code !== 58) Object.assign(made, code === 38 ? {color: colour} : {backgroundColor: ground(colour)});
    } else if (code === 0) Object.keys(made).forEach((name) => delete made[name]);
    else if (code === 1) made.fontWeight = "bold";
    else if (code === 3) made.fontStyle = "italic";
    else if (code === 4 && own[0] !== 0) made.textDecoration = "underline";
    else if (code === 22) delete made.fontWeight;
    else if (code === 23) delete made.fontStyle;
    else if (code === 24 || code === 4) delete made.textDecoration;
    else if (code === 39) delete made.color;
    else if (code === 49) delete made.backgroundColor;
    else {
      const isBright = code >= 90, colour = indexed(code % 10 + (isBright ? 8 : 0));
      const tens = Math.floor(code / 10) - (isBright ? 6 : 0);
      if (code % 10 < 8 && tens === 3) made.color = colour;
      else if (code % 10 < 8 && tens === 4) made.backgroundColor = ground(colour);
    }
  }
  return made;
}

function igniteTfColoured(text) {
  const made = document.createDocumentFragment();
  let style = {};
  for (const [i, part] of text.split(/\x1b\[([0-9;:]*)m/).entries()) {
    if (i % 2) style = styled(style, part);
    else if (part) {
      const span = document.createElement("span");
      span.textContent = part;
      Object.assign(span.style, style);
      made.append(span);
    }
  }
  return made;
}
