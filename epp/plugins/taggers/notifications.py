"""The source that configuration files give taggers under."""

from epp.framework.datalayer import EndpointNotifications


class EndpointNotificationSource(EndpointNotifications):
    """Stands for the comings and goings of endpoints: its extractors see each endpoint when it joins or changes."""

    plugin_type = "endpoint-notification-source"
