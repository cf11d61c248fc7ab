// Starts the page.

import 'uplot/dist/uPlot.min.css';
import './app/base.css';
import './app/pages.css';
import './flame/flame.css';
import './heat/heat.css';
import './capture/capture.css';
import { render } from 'preact';
import { analysis } from './analysis/client';
import { App } from './app/App';
import { followAddress } from './state/store';
import { followTheme } from './state/theme';

analysis.open();
followAddress();
followTheme();

const place = document.getElementById('app');
if (place) render(<App />, place);
