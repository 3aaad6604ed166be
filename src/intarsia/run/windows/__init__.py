"""The windows of a step: cut into slots, moved from file to file or filled in memory, summed, and written."""
