"""What commands there are, and where: known without loading any of them, so that help comes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cyclopts import App


class Command(NamedTuple):
    """A command or a group of them: its name, where it is, and what it does in a line."""

    name: str
    home: str
    help: str


COMMANDS: Final = (
    Command("init", "perdure.cli.projects:init", "Begin a project: write a first agent into a folder."),
    Command("dev", "perdure.cli.projects:dev", "Run a project on this machine: server and worker in one process."),
    Command("serve", "perdure.cli.serving:serve", "Serve the API of a store, beside any number of others."),
    Command("worker", "perdure.cli.serving:worker", "Run the sessions of a PostgreSQL store, beside other workers."),
    Command(
        "deploy", "perdure.cli.projects:deploy", "Build a project and make it an environment's current deployment."
    ),
    Command(
        "session", "perdure.cli.sessions:app", "Create and follow sessions, give them input, stop and resume them."
    ),
    Command("events", "perdure.cli.feeds:events", "Print what happens in all sessions of an environment."),
    Command("agent", "perdure.cli.agents:app", "See which agents the current deployment has."),
    Command("deployment", "perdure.cli.deployments:app", "See deployments and make one current again."),
    Command("login", "perdure.cli.login:login", "Save a server's address and API key for later commands."),
    Command("logout", "perdure.cli.login:logout", "Forget a saved server."),
    Command("doctor", "perdure.cli.doctor:doctor", "Say what of a store would lose acknowledged work."),
    Command("store", "perdure.cli.store:app", "Bring a store up to date, check it, move it, and let old things go."),
    Command("api-key", "perdure.cli.api_keys:app", "Make and revoke the API keys of servers."),
    Command("version", "perdure.cli.version:version", "Print the version."),
)

_HEAD: Final = """\
Usage: perdure COMMAND

Durable AI agents: sessions, turns and processes that survive crashes, deploys and months of silence.

Commands:
"""
_TAIL: Final = """
Begin with `perdure init my-project` and `perdure dev my-project`. Help on a command: `perdure COMMAND --help`.
"""


def overview() -> str:
    """Return the page that `perdure --help` prints."""
    width = max(len(command.name) for command in COMMANDS) + 2
    lines = (f"  {command.name:<{width}}{command.help}\n" for command in COMMANDS)
    return "".join((_HEAD, *lines, _TAIL))


def make_app() -> App:
    """Return the application. A command's module is loaded when the command is used."""
    from cyclopts import App

    from perdure.cli.help import HelpFormatter

    app = App(
        name="perdure",
        help_format="plaintext",
        help_formatter=HelpFormatter(),
        version_flags=(),
        print_error=False,
        exit_on_error=False,
        help_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for command in COMMANDS:
        app.command(command.home, name=command.name, help=command.help)
    return app
