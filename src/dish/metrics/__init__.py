"""Scores of Hamming rankings from distance histograms, without sorting anything."""

from dish.metrics.counting import *  # noqa: F403
