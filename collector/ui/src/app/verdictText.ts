// What is said of a selection and of the time before, in words.

/** The change in words; empty where nothing can be said. */
export function changeText(now: number, was: number): string {
  if (!Number.isFinite(now) || !Number.isFinite(was)) return '';
  if (was < 0.0005) return now < 0.0005 ? '' : 'nothing';
  const percent = ((now - was) / was) * 100;
  if (Math.abs(percent) < 0.5) return 'unchanged';
  const size = Math.abs(percent);
  return `${percent < 0 ? '−' : '+'}${size < 10 ? size.toFixed(1) : Math.round(size).toLocaleString('en')} %`;
}
