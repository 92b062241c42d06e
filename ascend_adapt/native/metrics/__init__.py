"""What a native run logs: metrics, log formats, stragglers, anomalies, profiles."""
