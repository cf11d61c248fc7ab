// Draws a flame graph as Grafana's panel does: the answer's levels become a data frame in the order
// of a nested set, as the data source's backend makes one.
// Required, not imported: its modules import others that only answer to the first.
const { createDataFrame, createTheme, FieldType } = require('@grafana/data');
const { FlameGraph } = require('@grafana/flamegraph');
const { createRoot } = require('react-dom/client');

function nested({ names, levels }) {
  const rows = levels.map(({ values }) => {
    let end = 0;
    const bars = [];
    for (let at = 0; at < values.length; at += 4) {
      const [distance, total, self, name] = values.slice(at, at + 4).map(Number);
      const start = end + distance;
      end = start + total;
      bars.push({ start, end, total, self, label: names[name] });
    }
    return bars;
  });
  const frame = { level: [], value: [], self: [], label: [] };
  const add = (bar, level) => {
    frame.level.push(level);
    frame.value.push(bar.total);
    frame.self.push(bar.self);
    frame.label.push(bar.label);
    const below = rows[level + 1] ?? [];
    const children = below.filter((one) => bar.start <= one.start && one.end <= bar.end);
    for (const child of children) add(child, level + 1);
  };
  add(rows[0][0], 0);
  return frame;
}

const { flamegraph } = window.answer;
const { level, value, self, label } = nested(flamegraph);
const data = createDataFrame({
  fields: [
    { name: 'level', values: level, type: FieldType.number },
    { name: 'value', values: value, type: FieldType.number, config: { unit: 'ns' } },
    { name: 'self', values: self, type: FieldType.number, config: { unit: 'ns' } },
    { name: 'label', values: label, type: FieldType.string },
  ],
});
createRoot(document.getElementById('root')).render(
  <FlameGraph data={data} getTheme={() => createTheme()} />,
);
window.bars = label.length;
