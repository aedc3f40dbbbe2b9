"""Why a run failed: logs, failure signatures, root against cascade, and gates that stand behind."""
