// By which label lines and stacks are told apart.

interface Props {
  value: string;
  labels: readonly string[];
  onChange: (label: string) => void;
}

export function GroupBy({ value, labels, onChange }: Props) {
  const all = [...new Set([...labels, ...(value ? [value] : [])])];
  return (
    <label class="inline">
      Group by
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">none</option>
        {all.map((label) => (
          <option key={label} value={label}>
            {label.slice(0, 40)}
          </option>
        ))}
      </select>
    </label>
  );
}
