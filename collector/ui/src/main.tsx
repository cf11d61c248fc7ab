// Starts the page.

import 'uplot/dist/uPlot.min.css';
import './app/base.css';
import './tables/tables.css';
import './app/pages.css';
import './flame/flame.css';
import './heat/heat.css';
import './capture/capture.css';
import './events/events.css';
import './overview/overview.css';
import './compare/compare.css';
import { render } from 'preact';
import { type Port, analyseWith, analysis } from './analysis/client';
import { CollectorService } from './analysis/collectorService';
import { inlinePort } from './analysis/inline';
import { App } from './app/App';
import { type SearchPort, searchWith } from './flame/useMask';
import { Embedded, partOf } from './embed/Embedded';
import { followAddress, setState } from './state/store';
import { followTheme } from './state/theme';
import { followZone } from './state/zone';

analyseWith(() =>
  new URLSearchParams(location.search).get('worker') === 'off'
    ? inlinePort((send) => new CollectorService(send))
    : (new Worker(new URL('./analysis/worker.ts', import.meta.url), { type: 'module' }) as Port),
);
searchWith(() => new Worker(new URL('./flame/searchWorker.ts', import.meta.url), { type: 'module' }) as SearchPort);
analysis.open();
followAddress();
followTheme();
followZone();

const place = document.getElementById('app');
const part = partOf(location.search);
if (part === 'flame' || part === 'table') setState({ panel: part }, { replace: true });
if (place) render(part ? <Embedded part={part} /> : <App />, place);
