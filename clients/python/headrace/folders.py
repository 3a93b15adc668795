"""The names of folders that a study has on every machine."""


def study_folder(name: str, uid: str) -> str:
    """The name of the folders that hold a study's logs, checkpoints and reports. A study that was deleted and created
    again under its name has another `uid`, and folders of its own."""
    return f"{name}-{uid}" if uid else name
