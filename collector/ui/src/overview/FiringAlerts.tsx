// Alerts on the overview: how many fire, the worst first, each a click away from its data.

import { listAlerts } from '../alerts/client';
import { leads } from '../alerts/leads';
import { amount, labelsOf, troubles, verdict } from '../alerts/words';
import { Link } from '../app/Link';
import { Icon, Name } from '../app/parts';
import { type Alert, AlertState, type ListAlertsResponse } from '../gen/fleetprof/collector/v1/alerts_pb';
import { useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { toMs } from '../time/range';

/** Alerts that are named; the others are a click away. */
const NAMED_MAX = 3;

interface Props {
  /** Changes when the page asks again. */
  turn: string;
  now: () => number;
}

/** Of the complete fleet, whatever is selected. Its first line is there from the start. */
export function FiringAlerts({ turn, now }: Props) {
  const query = useQuery(`firing\n${turn}`, (signal) => listAlerts(undefined, signal));
  return (
    <section class="firing" aria-label="Alerts">
      {query.trouble ? (
        <p class="tone-warn">Whether alerts fire is not known: {query.trouble.title}</p>
      ) : (
        query.data && <Told answer={query.data} now={now()} />
      )}
    </section>
  );
}

function Told({ answer, now }: { answer: ListAlertsResponse; now: number }) {
  const { text, bad } = verdict(answer);
  const firing = answer.alerts.filter((one) => one.state === AlertState.FIRING);
  const wrong = troubles(answer);
  return (
    <>
      <p>
        {bad && <Icon of="warn" />}{' '}
        <Link to={{ view: 'alerts' }} class={bad ? 'tone-bad' : 'soft'}>
          {answer.trouble === '' ? text : 'Alerts are not evaluated'}
        </Link>
        {wrong.length > 0 && (
          <span class="tone-warn">
            {' · '}
            <Name text={wrong[0]} max={160} />
            {wrong.length > 1 && `, and ${format.plural(wrong.length - 1, 'more problem')}`}
          </span>
        )}
      </p>
      {firing.length > 0 && (
        <ul>
          {firing.slice(0, NAMED_MAX).map((one) => (
            <Firing key={`${one.fingerprint} ${one.id}`} of={one} now={now} />
          ))}
        </ul>
      )}
      {firing.length > NAMED_MAX && (
        <p>
          <Link to={{ view: 'alerts' }}>and {format.plural(firing.length - NAMED_MAX, 'more alert')}</Link>
        </p>
      )}
    </>
  );
}

function Firing({ of, now }: { of: Alert; now: number }) {
  const to = leads(of, now);
  const since = toMs(of.sinceUnixNs);
  return (
    <li>
      <Link to={to.open} title="Open its samples, from half an hour before it fired">
        <Name text={of.rule} max={60} />
      </Link>{' '}
      <Name text={labelsOf(of)} max={80} empty="" /> <b>{amount(of.value, of.unit)}</b>{' '}
      <span class="soft">
        (limit {amount(of.threshold, of.unit)}) <span title={format.stamp(since)}>{format.ago(since, now)}</span>
        {of.severity !== '' && (
          <>
            {' · '}
            <Name text={of.severity} max={32} />
          </>
        )}
      </span>{' '}
      <Link to={to.compare} title="Compare with the same time a day before">
        Compare
      </Link>
    </li>
  );
}
