// What fires, since when and with which value; what fired in the range; the rules behind it.

import { FilterInput } from '../app/FilterInput';
import { Link } from '../app/Link';
import type { PageProps } from '../app/page';
import { Answer, Choice, Empty, Name } from '../app/parts';
import { type ColumnOf, SortedTable } from '../app/sorting';
import {
  type Alert,
  type AlertRule,
  AlertState,
  type ListAlertsResponse,
} from '../gen/fleetprof/collector/v1/alerts_pb';
import { useQuery } from '../query/useQuery';
import { setState, useViewState } from '../state/store';
import * as format from '../text/format';
import { toMs } from '../time/range';
import { listAlerts } from './client';
import './alerts.css';
import { leads } from './leads';
import { amount, labelsOf, stateOf, troubles, verdict } from './words';

export function AlertsPage(props: PageProps) {
  const { pinTimes } = useViewState('pinTimes');
  const range = pinTimes === 'range' ? props.range : undefined;
  const query = useQuery(`alerts ${pinTimes}\n${props.selectionKey}`, (signal) => listAlerts(range, signal));
  return (
    <section class="page" aria-label="Alerts">
      <header class="page-head">
        <h2>Alerts</h2>
        <div class="pin-filters">
          <Choice
            label="Alerts"
            value={pinTimes}
            of={[
              ['all', 'Now', 'What is pending or firing now'],
              ['range', 'Also in the range', 'Also what fired in the time range above and is over'],
            ]}
            onChange={(next) => setState({ pinTimes: next })}
          />
          <FilterInput label="Filter alerts" placeholder="Filter by alert, label or severity" />
        </div>
      </header>
      <Answer query={query} what="the alerts">
        {(answer) => <Told {...props} answer={answer} />}
      </Answer>
    </section>
  );
}

function Told(props: PageProps & { answer: ListAlertsResponse }) {
  const { answer } = props;
  const { text, bad } = verdict(answer);
  return (
    <>
      <p class={`alert-verdict ${bad ? 'bad' : ''}`} role="status">
        {text}
      </p>
      {troubles(answer).map((one) => (
        <p key={one} class="notice">
          <Name text={one} max={400} />
        </p>
      ))}
      {answer.leftOut > 0n && <p class="notice">{format.count(Number(answer.leftOut))} more alerts are not listed.</p>}
      <Rows {...props} alerts={answer.alerts} hasRules={answer.rules.length > 0} />
      {answer.rules.length > 0 && <Rules {...props} rules={answer.rules} />}
    </>
  );
}

function Rows(props: PageProps & { alerts: readonly Alert[]; hasRules: boolean }) {
  const { filter, sort } = useViewState('filter', 'sort');
  const wanted = filter.toLowerCase();
  const matches = (one: Alert) =>
    [one.rule, one.severity, one.summary, one.function, labelsOf(one)].some((text) =>
      text.toLowerCase().includes(wanted),
    );
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of alerts">
      <SortedTable
        caption="Alerts"
        columns={columns(props)}
        rows={props.alerts.filter(matches)}
        sort={sort}
        onSort={(next) => setState({ sort: next })}
        keyOf={(one) => `${one.fingerprint} ${one.id}`}
        rowClass={(one) => `alert-${stateOf(one).replace(' ', '-')}`}
        empty={
          <Empty title={props.alerts.length ? 'No matching alerts' : 'Nothing is pending or firing'}>
            {!props.hasRules && (
              <p>
                Rules are in the collector’s configuration (`alerts`), for instance: cores of a unit above a number, or
                above its baseline; the share of a function above a percentage.
              </p>
            )}
          </Empty>
        }
      />
    </div>
  );
}

function columns(props: PageProps): ColumnOf<Alert>[] {
  const since = (one: Alert) => toMs(one.sinceUnixNs);
  return [
    {
      key: 'state',
      title: 'State',
      by: (one) => one.state,
      cell: (one) => (
        <span class="alert-state">
          {stateOf(one)}
          {one.state === AlertState.FIRING && one.noData !== '' && <span class="soft"> (no data now)</span>}
        </span>
      ),
    },
    {
      key: 'name',
      title: 'Alert',
      by: (one) => one.rule,
      cell: (one) => (
        <span class="pin-why">
          <span>
            <Name text={one.rule} max={60} />
            {one.severity !== '' && (
              <span class="soft">
                {' '}
                <Name text={one.severity} max={32} />
              </span>
            )}
          </span>
          {labelsOf(one) !== '' && (
            <span class="soft">
              <Name text={labelsOf(one)} max={160} />
            </span>
          )}
          {(one.noData || one.summary) !== '' && (
            <span class="soft">
              <Name text={one.noData || one.summary} max={300} />
            </span>
          )}
        </span>
      ),
    },
    {
      key: 'value',
      title: 'Value',
      number: true,
      by: (one) => one.value ?? -1,
      cell: (one) => amount(one.value, one.unit),
    },
    {
      key: 'since',
      title: 'Since',
      number: true,
      by: since,
      cell: (one) => <span title={format.stamp(since(one))}>{format.ago(since(one), props.now())}</span>,
    },
    {
      key: 'limit',
      title: 'Limit',
      number: true,
      by: (one) => one.threshold ?? -1,
      cell: (one) => (
        <span title={one.baseline === undefined ? undefined : `baseline ${amount(one.baseline, one.unit)}`}>
          {amount(one.threshold, one.unit)}
        </span>
      ),
    },
    {
      key: 'lead',
      title: 'Data',
      cell: (one) => {
        const to = leads(one, props.now());
        return (
          <span class="alert-leads">
            <Link to={to.open}>Open</Link> <Link to={to.compare}>Compare</Link>
          </span>
        );
      },
    },
  ];
}

function Rules(props: PageProps & { rules: readonly AlertRule[] }) {
  const columnsOfRules: ColumnOf<AlertRule>[] = [
    { key: 'name', title: 'Rule', cell: (one) => <Name text={one.name} max={60} /> },
    { key: 'condition', title: 'Condition', cell: (one) => <Name text={one.condition} max={160} /> },
    { key: 'selector', title: 'Selector', cell: (one) => <Name text={one.selector} max={160} empty="whole fleet" /> },
    { key: 'by', title: 'Group by', cell: (one) => <Name text={one.groupBy} max={60} empty="none" /> },
    {
      key: 'evaluated',
      title: 'Evaluated',
      number: true,
      cell: (one) => (one.evaluatedUnixNs ? format.ago(toMs(one.evaluatedUnixNs), props.now()) : 'not yet'),
    },
  ];
  return (
    <details class="alert-rules">
      <summary>{format.plural(props.rules.length, 'rule')}</summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of rules">
        <SortedTable
          caption="Rules"
          columns={columnsOfRules}
          rows={props.rules}
          sort=""
          onSort={() => undefined}
          keyOf={(one) => one.name}
          empty={<Empty title="No rules" />}
        />
      </div>
    </details>
  );
}
