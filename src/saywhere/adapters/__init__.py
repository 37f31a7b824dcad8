"""Third-party models behind saywhere's questions, by the classes of transformers; one small module per family."""
