"""The style sheet of the report; text has at least 4.5 times more or less light than its ground."""

from __future__ import annotations

__all__ = ["STYLE"]


STYLE = """
:root{--ground:#fff;--panel:#f6f7f9;--ink:#1b2129;--muted:#56606b;--rule:#e1e5ea;--axis:#9aa4af;
--other:#b4bcc5;--link:#005a94;--shade:rgba(20,30,40,.22)}
@media(prefers-color-scheme:dark){:root{--ground:#12161b;--panel:#1a2027;--ink:#e8ecf0;
--muted:#9ba6b2;--rule:#2a323b;--axis:#66717d;--other:#525d69;--link:#6bb5ea;
--shade:rgba(0,0,0,.75)}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);-webkit-text-size-adjust:100%;
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 24px 56px}
a{color:var(--link)}
h1{font-size:30px;line-height:1.2;letter-spacing:-.015em;margin:2px 0 6px}
h2{font-size:20px;letter-spacing:-.01em;margin:0 0 2px;overflow-wrap:anywhere}
h3.budget{font-size:15px;margin:20px 0 0;overflow-wrap:anywhere}
p{margin:0 0 12px}
.brand{color:var(--link);font-weight:650;font-size:14px;margin:0}
.headline{font-size:18px;line-height:1.45;margin:4px 0 8px;max-width:70ch;overflow-wrap:anywhere}
.muted,figcaption{color:var(--muted)}
section,footer,nav{border-top:1px solid var(--rule);padding-top:26px;margin-top:34px}
nav{padding-top:18px;margin-top:22px}nav h2{font-size:15px;margin-bottom:8px}
.glance{list-style:none;margin:0;padding:0;display:grid;gap:10px 28px;font-size:14px;
line-height:1.45;grid-template-columns:repeat(auto-fill,minmax(min(480px,100%),1fr))}
.glance li{overflow-wrap:anywhere;min-width:0}
.glance a{font-weight:600}.more{margin:14px 0 0;font-size:14px}
figure{margin:0;padding:16px 18px 14px;background:var(--panel);border-radius:10px;
min-width:0;display:flex;flex-direction:column}
img{max-width:100%;height:auto;background:#fff}
figcaption{font-size:12.5px;line-height:1.45;margin-top:auto;
padding-top:8px}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch;
background:linear-gradient(to left,var(--ground) 40%,transparent) 100% 0/60px 100% no-repeat local,
linear-gradient(to left,var(--shade),transparent) 100% 0/18px 100% no-repeat scroll}
.hint{display:none;margin:0 0 4px;font-size:12.5px;color:var(--muted)}
table{border-collapse:collapse;font-size:13.5px;line-height:1.35;width:100%;
font-variant-numeric:tabular-nums}
th,td{padding:8px 9px;text-align:right;white-space:nowrap;vertical-align:top;
border-bottom:1px solid var(--rule)}
td.words{white-space:normal;min-width:110px}
thead th{font-weight:600;font-size:12.5px;color:var(--muted);border-bottom-color:var(--axis)}
th:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--ground);
white-space:normal;min-width:150px;overflow-wrap:anywhere}
tbody th{font-weight:600}
td small{display:block;color:var(--muted);font-size:12px}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:help;
text-decoration:underline dotted;text-underline-offset:3px}
th button:focus-visible,.scroll:focus-visible,a:focus-visible{outline:2px solid var(--link);
outline-offset:2px}
.gloss{max-width:min(420px,calc(100vw - 40px));padding:14px 18px;border:1px solid var(--axis);
border-radius:10px;background:var(--panel);color:var(--ink);font-size:14px}
.gloss p{margin:4px 0 0}
.gloss::backdrop{background:rgba(0,0,0,.25)}
footer{font-size:14px}footer p,footer ul{max-width:76ch}footer h2{font-size:15px;margin-top:20px}
ul{margin:0;padding-left:20px}li{overflow-wrap:anywhere}.left{margin-top:6px;font-size:14px}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 18px;margin:6px 0 0}
dt{color:var(--muted);overflow-wrap:anywhere}dd{margin:0}
code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
@media(max-width:1100px){.hint{display:block}}
@media(max-width:560px){main{padding:24px 16px 40px}h1{font-size:25px}h2{font-size:18px}
.headline{font-size:16.5px}
figure{padding:14px 10px 12px}
th:first-child{min-width:142px}
dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:8px}}
""".strip()
