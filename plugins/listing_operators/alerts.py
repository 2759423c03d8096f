"""One alert to wherever on-call looks: the task log always, and a Slack, SMTP or PagerDuty connection when one is named.

The connection's type decides the channel, so that moving from e-mail to a pager is a change of connection, not of code.
"""

from __future__ import annotations

import logging

from airflow.sdk.bases.hook import BaseHook
from tenacity import retry, stop_after_attempt, wait_exponential

log = logging.getLogger(__name__)


class AlertChannelError(RuntimeError):
    """The alert connection has a type that cannot carry an alert."""


@retry(stop=stop_after_attempt(3), wait=wait_exponential(min=1, max=20), reraise=True)
def _deliver(conn_id: str, subject: str, body: str, dedup_key: str) -> None:
    connection = BaseHook.get_connection(conn_id)
    if connection.conn_type == "slackwebhook":
        from airflow.providers.slack.hooks.slack_webhook import SlackWebhookHook

        SlackWebhookHook(slack_webhook_conn_id=conn_id).send_text(f"*{subject}*\n```{body}```")
    elif connection.conn_type == "smtp":
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        with SmtpHook(smtp_conn_id=conn_id) as hook:
            to = str(connection.extra_dejson.get("to_email") or hook.from_email or "")
            if not to:
                raise AlertChannelError(f"connection {conn_id} says nowhere to mail: set to_email in its extra")
            hook.send_email_smtp(to=to, subject=subject, html_content=f"<pre>{_escape(body)}</pre>")
    elif connection.conn_type == "pagerduty_events":
        from airflow.providers.pagerduty.hooks.pagerduty_events import PagerdutyEventsHook

        PagerdutyEventsHook(pagerduty_events_conn_id=conn_id).send_event(
            summary=subject, severity="critical", custom_details=body, dedup_key=dedup_key
        )
    else:
        raise AlertChannelError(
            f"connection {conn_id} has type {connection.conn_type!r}; use slackwebhook, smtp or pagerduty_events"
        )


def _escape(text: str) -> str:
    import html

    return html.escape(text)


def send_alert(subject: str, body: str, *, conn_id: str | None, dedup_key: str) -> bool:
    """Logs the alert at ERROR and sends it once through `conn_id`, if given. Returns whether it is where it was to go.

    A channel that stays down after three tries is logged and does not raise: the run fails for its own reason anyway.
    `dedup_key` (run and failures) lets PagerDuty fold a repeated alert into one page.
    """
    log.error("ALERT %s\n%s", subject, body)
    if not conn_id:
        return True
    try:
        _deliver(conn_id, subject, body, dedup_key)
        return True
    except Exception:
        log.exception("the alert could not be delivered through connection %s; it stands above", conn_id)
        return False
