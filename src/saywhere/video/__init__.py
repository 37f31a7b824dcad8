"""Videos and cameras: regions followed over time, one phrase for each."""
