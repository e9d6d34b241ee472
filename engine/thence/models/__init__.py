"""Model providers (§12). Import the one you need: the SDKs behind them are loaded only then."""
