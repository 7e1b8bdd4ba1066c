"""Every line of SQL of the project, and the only module that reads it."""
