// Alerts in words: states, values and the line that says how it stands.

import {
  type Alert,
  type AlertReceiver,
  type AlertRule,
  AlertState,
  type ListAlertsResponse,
} from '../gen/fleetprof/collector/v1/alerts_pb';
import * as format from '../text/format';

const STATES: Record<AlertState, string> = {
  [AlertState.UNSPECIFIED]: 'unknown',
  [AlertState.PENDING]: 'pending',
  [AlertState.FIRING]: 'firing',
  [AlertState.NO_DATA]: 'no data',
  [AlertState.RESOLVED]: 'resolved',
};

export const stateOf = (alert: Alert) => STATES[alert.state] ?? 'unknown';

/** `5.25 cores`, `12.3 %`. */
export function amount(value: number | undefined, unit: string): string {
  if (value === undefined) return '–';
  return unit === 'percent' ? `${value.toFixed(1)} %` : `${value.toFixed(2)} cores`;
}

/** What an alert or an incident is about, as `name=value`, in one order. */
export function labelsOf(of: { labels: Record<string, string> }): string {
  const pairs = Object.entries(of.labels).sort(([left], [right]) => (left < right ? -1 : 1));
  return pairs.map(([name, value]) => `${name}=${value}`).join(' ');
}

/** One line of verdict, and whether it is bad. */
export function verdict({ alerts, rules }: ListAlertsResponse): { text: string; bad: boolean } {
  const of = (state: AlertState) => alerts.filter((one) => one.state === state).length;
  const firing = of(AlertState.FIRING);
  const others = [
    [of(AlertState.PENDING), 'pending'],
    [of(AlertState.NO_DATA), 'without data'],
  ] as const;
  const more = others.filter(([count]) => count > 0).map(([count, word]) => `${format.count(count)} ${word}`);
  if (firing > 0) return { text: [`${format.plural(firing, 'alert')} firing`, ...more].join(', '), bad: true };
  if (!rules.length) return { text: 'No alert rules', bad: false };
  return { text: ['Nothing is firing', ...more].join(', '), bad: false };
}

/** What keeps alerts from being judged or told, in sentences. */
export function troubles(answer: {
  trouble: string;
  rules: readonly AlertRule[];
  receivers: readonly AlertReceiver[];
}): string[] {
  const found = answer.trouble === '' ? [] : [answer.trouble];
  for (const one of answer.rules) {
    if (one.error !== '') found.push(`Alert ${one.name} has no value: ${one.error}`);
    if (one.groupsLeftOut > 0n)
      found.push(
        `Alert ${one.name} leaves out ${format.count(Number(one.groupsLeftOut))} values of ${one.groupBy}: narrow its selector`,
      );
  }
  for (const one of answer.receivers)
    if (one.failures > 0n)
      found.push(
        `Receiver ${one.name} does not accept notifications, ${format.count(Number(one.waiting))} wait: ${one.error}`,
      );
  return found;
}
