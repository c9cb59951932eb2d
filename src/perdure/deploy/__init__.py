"""From a project's folder to a deployment: archive, build, and watching for changes of code."""
