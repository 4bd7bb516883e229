// Searches for a period off the main thread.

import { bestPeriod } from "./period.js";

onmessage = (event) => postMessage(bestPeriod(event.data));
