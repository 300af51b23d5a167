"""The objective of a step: the weighted loss terms and penalties that each update descends."""
