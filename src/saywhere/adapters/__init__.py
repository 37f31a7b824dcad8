"""Models of other people behind saywhere's questions, by the classes of transformers; a small file a family."""
